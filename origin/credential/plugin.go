package credential

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"graze/chunk"
	"graze/origin"
)

// What a plugin says its answer is good for.
const (
	cacheImage    = "Image"
	cacheRegistry = "Registry"
	cacheGlobal   = "Global"
)

// maxAnswer bounds what is read of a plugin's output, in bytes.
const maxAnswer = 1 << 20

// An answer is what a plugin has said.
type answer struct {
	kind    string // cacheImage, cacheRegistry or cacheGlobal
	asked   time.Time
	expires time.Time
	auth    map[string]pluginAuth
}

type pluginAuth struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// pluginRequest and pluginResponse are the documents of the protocol.
type pluginRequest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Image      string `json:"image"`
}

type pluginResponse struct {
	APIVersion    string                `json:"apiVersion"`
	Kind          string                `json:"kind"`
	CacheKeyType  string                `json:"cacheKeyType"`
	CacheDuration *duration             `json:"cacheDuration"`
	Auth          map[string]pluginAuth `json:"auth"`
}

// scopeOf returns what an answer of a kind is kept by.
func scopeOf(kind, image string) string {
	switch kind {
	case cacheImage:
		return image
	case cacheRegistry:
		host, _, _ := strings.Cut(image, "/")
		return host
	}
	return ""
}

// credentials returns what the answer has for an image, the most specific first.
func (a *answer) credentials(image, plugin string) []origin.Credential {
	var patterns []string
	for s := range a.auth {
		patterns = append(patterns, s)
	}
	slices.SortFunc(patterns, func(x, y string) int { return cmp.Or(len(y)-len(x), strings.Compare(x, y)) })
	var list []origin.Credential
	for _, s := range patterns {
		if p, err := parsePattern(s); err == nil && p.matches(image) && a.auth[s] != (pluginAuth{}) {
			list = append(list, origin.Credential{
				Username: a.auth[s].Username, Password: a.auth[s].Password,
				Source: "kubelet's credential provider " + plugin,
			})
		}
	}
	return list
}

// run runs the plugin in a file for an image.
func (p *provider) run(ctx context.Context, file, image string) (*answer, error) {
	stdin, err := json.Marshal(pluginRequest{APIVersion: p.APIVersion, Kind: "CredentialProviderRequest", Image: image})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, file, p.Args...)
	cmd.Env = os.Environ()
	for _, v := range p.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = time.Second
	stdout, stderr := &limited{limit: maxAnswer}, &limited{limit: 4 << 10}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	asked := time.Now()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		// What it printed on standard output may be a secret.
		return nil, fmt.Errorf("%w: credential provider %s: %w: %.200q", classOf(err), p.Name, err, strings.TrimSpace(stderr.buf.String()))
	}
	a, err := p.parse(stdout.buf.Bytes(), asked)
	if err != nil {
		return nil, fmt.Errorf("credential provider %s: %w", p.Name, err)
	}
	return a, nil
}

// classOf says whether asking again may help.
func classOf(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return chunk.ErrDenied
	}
	return chunk.ErrUnavailable
}

// parse reads a plugin's output. Errors show nothing of it.
func (p *provider) parse(text []byte, asked time.Time) (*answer, error) {
	var r pluginResponse
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, errors.New("its answer is not JSON that kubelet understands")
	}
	if r.Kind != "CredentialProviderResponse" || r.APIVersion != p.APIVersion {
		return nil, fmt.Errorf("its answer is not a CredentialProviderResponse of %s", p.APIVersion)
	}
	if !slices.Contains([]string{cacheImage, cacheRegistry, cacheGlobal}, r.CacheKeyType) {
		return nil, fmt.Errorf("its cacheKeyType is none of %s, %s and %s", cacheImage, cacheRegistry, cacheGlobal)
	}
	life := p.DefaultCacheDuration
	if r.CacheDuration != nil {
		life = r.CacheDuration
	}
	return &answer{kind: r.CacheKeyType, asked: asked, expires: asked.Add(time.Duration(*life)), auth: r.Auth}, nil
}

// A limited buffer keeps the beginning of what is written to it, and takes all of
// it, so that the writer can end.
type limited struct {
	limit int
	buf   bytes.Buffer
}

// Write implements io.Writer.
func (b *limited) Write(p []byte) (int, error) {
	b.buf.Write(p[:min(len(p), max(b.limit-b.buf.Len(), 0))])
	return len(p), nil
}
