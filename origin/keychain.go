package origin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Keychain has the credentials for registries.
type Keychain interface {
	// Credentials yields what to show to a host for a repository, the best first.
	// The host is "docker.io" for Docker's registry. Further ones are asked for
	// when those before were refused. Having none is not an error: the zero
	// Credential, perhaps with a Source, says where it was looked for. An error
	// stands for a source that can't be asked now; there may be others after it.
	Credentials(ctx context.Context, host, repository string) iter.Seq2[Credential, error]
}

// A Credential is what a registry or its token service is shown. At most one of
// the three kinds is set.
type Credential struct {
	Username, Password string
	IdentityToken      string // an OAuth2 refresh token
	RegistryToken      string // a bearer token for the registry itself

	// Source says where the credential comes from, or where it was looked for.
	// It is shown in errors.
	Source string
}

// anonymous reports whether there is nothing to show.
func (c Credential) anonymous() bool {
	return c.Username == "" && c.Password == "" && c.IdentityToken == "" && c.RegistryToken == ""
}

// describe says, for errors, what was shown.
func (c Credential) describe() string {
	source := c.Source
	switch {
	case c.anonymous() && source == "":
		return "no credentials are configured"
	case c.anonymous():
		return "no credentials in " + source
	case source == "":
		source = "the keychain"
	}
	if c.Username != "" {
		return fmt.Sprintf("with credentials of %.100q from %s", c.Username, source)
	}
	return "with a token from " + source
}

// helperTimeout bounds the run of a credential helper, if the DockerConfig does
// not.
const helperTimeout = 30 * time.Second

// DockerConfig is a Keychain that reads Docker's config.json: its auths, its
// credHelpers and its credsStore. The file is read for each credential, so that
// a login takes effect at once; a missing file has none.
type DockerConfig struct {
	Dir string // the directory of config.json

	// Timeout bounds the run of a credential helper. Default: 30 s.
	Timeout time.Duration
}

// dockerConfig is the part of config.json about credentials.
type dockerConfig struct {
	Auths       map[string]dockerAuth `json:"auths"`
	CredsStore  string                `json:"credsStore"`
	CredHelpers map[string]string     `json:"credHelpers"`
}

type dockerAuth struct {
	Auth          string `json:"auth"` // base64 of user:password
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

func (a dockerAuth) credential() (c Credential, err error) {
	c = Credential{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
	if a.Auth != "" {
		c.Username, c.Password, err = decodeAuth(a.Auth)
	}
	return c, err
}

// Credentials implements Keychain. It yields one credential.
func (d DockerConfig) Credentials(ctx context.Context, host, repository string) iter.Seq2[Credential, error] {
	return func(yield func(Credential, error) bool) { yield(d.credential(ctx, host, repository)) }
}

func (d DockerConfig) credential(ctx context.Context, host, repository string) (Credential, error) {
	file := filepath.Join(d.Dir, "config.json")
	none := Credential{Source: file}
	data, err := readLimited(file)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	} else if err != nil {
		return none, err
	}
	var conf dockerConfig
	if err := json.Unmarshal(data, &conf); err != nil {
		return none, fmt.Errorf("%s: %w", file, err)
	}
	keys := []string{host + "/" + repository, host}
	if host == dockerHub {
		keys = append(keys, "index.docker.io", dockerHubKey)
	}
	for _, key := range keys {
		if helper := conf.CredHelpers[key]; helper != "" {
			return d.runHelper(ctx, helper, serverOf(key), file)
		}
	}
	// Old clients have written URLs: "https://host/v1/".
	for key := range conf.Auths {
		if u, err := url.Parse(key); err == nil && u.Host == host && (u.Scheme == "https" || u.Scheme == "http") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys[min(2, len(keys)):])
	for _, key := range keys {
		c, err := conf.Auths[key].credential()
		if err != nil {
			return none, fmt.Errorf("%s: auths %.200q: %w", file, key, err)
		}
		if !c.anonymous() {
			c.Source = file
			return c, nil
		}
	}
	if conf.CredsStore != "" {
		return d.runHelper(ctx, conf.CredsStore, serverOf(host), file)
	}
	return none, nil
}

// serverOf returns the name by which helpers know the host of a key.
func serverOf(key string) string {
	if key == dockerHub || key == "index.docker.io" {
		return dockerHubKey
	}
	return key
}

func decodeAuth(s string) (user, password string, err error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimRight(s, "\x00"))
	if err != nil {
		return "", "", errors.New("auth is not base64")
	}
	user, password, ok := strings.Cut(string(b), ":")
	if !ok || user == "" {
		return "", "", errors.New("auth is not user:password in base64")
	}
	return user, strings.TrimRight(password, "\x00"), nil
}

// runHelper asks the executable docker-credential-<name> for a credential.
func (d DockerConfig) runHelper(ctx context.Context, name, server, file string) (Credential, error) {
	program := "docker-credential-" + name
	none := Credential{Source: fmt.Sprintf("%s (named by %s)", program, file)}
	if name != filepath.Base(name) {
		return none, fmt.Errorf("%s: credential helper %.100q is not a plain name", file, name)
	}
	helperCtx, cancel := context.WithTimeout(ctx, cmp.Or(d.Timeout, helperTimeout))
	defer cancel()
	cmd := exec.CommandContext(helperCtx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.WaitDelay = time.Second
	var stdout, stderr limitedBuffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if cause := ended(ctx); cause != nil {
			return none, cause
		}
		said := strings.TrimSpace(stdout.buf.String() + " " + stderr.buf.String())
		if helperCtx.Err() != nil {
			return none, unavailable(fmt.Errorf("credential helper %s: no answer within %v", program, cmp.Or(d.Timeout, helperTimeout)))
		}
		if strings.Contains(said, "credentials not found") {
			return none, nil
		}
		err = fmt.Errorf("credential helper %s: %w: %.200q", program, err, said)
		if errors.Is(err, exec.ErrNotFound) {
			return none, denied(err)
		}
		return none, unavailable(err)
	}
	var out struct{ Username, Secret string }
	if err := json.Unmarshal(stdout.buf.Bytes(), &out); err != nil {
		return none, fmt.Errorf("credential helper %s: its answer is not JSON: %w", program, err)
	}
	if out.Username == "<token>" {
		return Credential{IdentityToken: out.Secret, Source: none.Source}, nil
	}
	return Credential{Username: out.Username, Password: out.Secret, Source: none.Source}, nil
}

// A limitedBuffer keeps the beginning of what is written to it. The buffer is no
// embedded field, whose ReadFrom would have no limit.
type limitedBuffer struct{ buf bytes.Buffer }

// Write implements io.Writer. It takes everything, so that the writer can end.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	room := max(64<<10-b.buf.Len(), 0)
	b.buf.Write(p[:min(len(p), room)])
	return len(p), nil
}
