package origin

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"graze/chunk"
)

// dockerHub is the name of the registry that references without a host name
// mean, dockerHubHost the host that answers for it, and dockerHubKey what
// Docker's config.json calls it.
const (
	dockerHub     = "docker.io"
	dockerHubHost = "registry-1.docker.io"
	dockerHubKey  = "https://index.docker.io/v1/"
)

// A repo names a repository.
type repo struct {
	registry string // "docker.io", "localhost:5000"
	path     string // "library/alpine"
}

func (r repo) String() string { return r.registry + "/" + r.path }

// A reference names a manifest in a repository by digest or else by tag.
type reference struct {
	repo
	tag    string
	digest chunk.Blob
}

// String returns the whole name, with registry and tag or digest.
func (r reference) String() string {
	if r.digest != "" {
		return r.repo.String() + "@" + string(r.digest)
	}
	return r.repo.String() + ":" + r.tag
}

// id returns the tag or digest, as it stands in a URL.
func (r reference) id() string {
	if r.digest != "" {
		return string(r.digest)
	}
	return r.tag
}

// parseReference completes and splits a reference as users write it: "alpine",
// "localhost:5000/app@sha256:…".
func parseReference(s string) (reference, error) {
	parsed, err := name.ParseReference(s)
	if err != nil {
		return reference{}, fmt.Errorf("reference %.200q is not valid: want [host/]repository[:tag|@sha256:digest]: %w", s, err)
	}
	ref := reference{repo: newRepo(parsed.Context())}
	switch parsed := parsed.(type) {
	case name.Digest:
		ref.digest = chunk.Blob(parsed.DigestStr())
	case name.Tag:
		ref.tag = parsed.TagStr()
	}
	return ref, nil
}

// parseRepo completes and splits the name of a repository.
func parseRepo(s string) (repo, error) {
	parsed, err := name.NewRepository(s)
	if err != nil {
		return repo{}, fmt.Errorf("repository %.200q is not valid: %w", s, err)
	}
	return newRepo(parsed), nil
}

func newRepo(r name.Repository) repo {
	registry := r.RegistryStr()
	if registry == name.DefaultRegistry {
		registry = dockerHub
	}
	return repo{registry, r.RepositoryStr()}
}

// isLoopback reports whether a host, with or without port, is this machine.
// Such registries are taken to speak plain HTTP.
func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}

// checkDigest returns an error unless d is a sha256 digest, the only kind that
// images have.
func checkDigest(d chunk.Blob) error {
	if id, err := chunk.ParseID(string(d)); err != nil || id.Algorithm() != chunk.SHA256 {
		return fmt.Errorf("digest %.100q is not sha256 and 64 lower-case hexadecimal digits", string(d))
	}
	return nil
}
