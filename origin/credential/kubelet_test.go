package credential

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
	"graze/origin"
)

// A plugin is a credential provider that answers with the content of a file, and
// counts its runs.
type plugin struct {
	dir string
}

const pluginScript = `#!/bin/sh
cd "$(dirname "$0")" || exit 1
cat >request
echo "$ARG $*" >>runs
if [ -e hang ]; then exec sleep 600; fi
if [ -e fail ]; then echo 'no metadata service' >&2; echo 'hunter2'; exit 1; fi
cat answer
`

// newPlugin returns a keychain with one plugin, whose settings are given.
func newPlugin(t *testing.T, settings string) (*plugin, *Kubelet) {
	t.Helper()
	p := &plugin{dir: t.TempDir()}
	p.write(t, "plug", pluginScript)
	if err := os.Chmod(filepath.Join(p.dir, "plug"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.write(t, "config.yaml", `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plug
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.test", "r.example:5000/team"]
  defaultCacheDuration: 1h
`+settings)
	return p, &Kubelet{Config: filepath.Join(p.dir, "config.yaml"), BinDir: p.dir}
}

func (p *plugin) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// answer sets what the plugin says.
func (p *plugin) answer(t *testing.T, kind, duration, auth string) {
	t.Helper()
	if duration != "" {
		duration = fmt.Sprintf(`"cacheDuration": %q,`, duration)
	}
	p.write(t, "answer", fmt.Sprintf(`{"apiVersion": "credentialprovider.kubelet.k8s.io/v1",
		"kind": "CredentialProviderResponse", "cacheKeyType": %q, %s "auth": {%s}}`, kind, duration, auth))
}

// runs returns how often the plugin was run.
func (p *plugin) runs(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "runs"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// first returns the users that a keychain yields until want is among them, and
// the errors.
func first(t *testing.T, k origin.Keychain, host, repository, want string) (users []string, err error) {
	t.Helper()
	for cred, e := range k.Credentials(t.Context(), host, repository) {
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		if cred.Username == "" {
			continue
		}
		users = append(users, cred.Username+":"+cred.Password)
		if cred.Username == want {
			break
		}
	}
	return users, err
}

func TestKubelet(t *testing.T) {
	p, k := newPlugin(t, `  args: ["get", "it"]
  env: [{name: ARG, value: from-env}]
`)
	p.answer(t, "Registry", "", `"a.test": {"username": "short", "password": "1"}, "*.test/app": {"username": "long", "password": "2"}`)
	users, err := first(t, k, "a.test", "app", "short")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"long:2", "short:1"}, users); diff != "" {
		t.Error(diff)
	}
	request, err := os.ReadFile(filepath.Join(p.dir, "request"))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderRequest","image":"a.test/app"}`; string(request) != want {
		t.Errorf("the plugin was asked %s", request)
	}
	if line, err := os.ReadFile(filepath.Join(p.dir, "runs")); err != nil || string(line) != "from-env get it\n" {
		t.Errorf("the plugin was run with %q, %v", line, err)
	}
	if users, err := first(t, k, "other.example", "app", ""); len(users) > 0 || err != nil {
		t.Errorf("for an image that it does not match: %q, %v", users, err)
	}
	if n := p.runs(t); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// TestKubeletCache asks for several images; what the plugin says of its answer
// decides for which of them it is run again.
func TestKubeletCache(t *testing.T) {
	for _, row := range []struct {
		kind, duration string
		want           []int // runs after each of the questions below
	}{
		{"Image", "", []int{1, 1, 2, 3}},
		{"Registry", "", []int{1, 1, 1, 2}},
		{"Global", "", []int{1, 1, 1, 1}},
		{"Global", "0s", []int{1, 2, 3, 4}},
		{"Registry", "1ns", []int{1, 2, 3, 4}},
	} {
		t.Run(row.kind+row.duration, func(t *testing.T) {
			p, k := newPlugin(t, "")
			p.answer(t, row.kind, row.duration, `"*.test": {"username": "u", "password": "p"}`)
			var got []int
			for _, image := range []string{"a.test app", "a.test app", "a.test other", "b.test app"} {
				host, repository, _ := strings.Cut(image, " ")
				if users, err := first(t, k, host, repository, "u"); len(users) != 1 || err != nil {
					t.Fatalf("%s: %q, %v", image, users, err)
				}
				got = append(got, p.runs(t))
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestKubeletRotates refuses what is kept: then the plugin is asked again.
func TestKubeletRotates(t *testing.T) {
	p, k := newPlugin(t, "")
	p.answer(t, "Image", "12h", `"*.test": {"username": "old", "password": "p"}`)
	if _, err := first(t, k, "a.test", "app", "old"); err != nil {
		t.Fatal(err)
	}
	p.answer(t, "Image", "12h", `"*.test": {"username": "new", "password": "p"}`)
	users, err := first(t, k, "a.test", "app", "new")
	if diff := cmp.Diff([]string{"old:p"}, users); diff != "" || err != nil {
		t.Errorf("soon after the first question: %v\n%s", err, diff)
	}
	k.mu.Lock()
	for _, a := range k.answers {
		a.asked = a.asked.Add(-2 * refreshPause)
	}
	k.mu.Unlock()
	for range 2 {
		users, err = first(t, k, "a.test", "app", "new")
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"new:p"}, users); diff != "" {
		t.Error(diff)
	}
	if n := p.runs(t); n != 2 {
		t.Errorf("%d runs", n)
	}
}

func TestKubeletFails(t *testing.T) {
	for _, row := range []struct {
		name    string
		prepare func(t *testing.T, p *plugin, k *Kubelet)
		want    string
		class   error
	}{
		{"no JSON", func(t *testing.T, p *plugin, _ *Kubelet) { p.write(t, "answer", "hunter2") }, "not JSON", nil},
		{"another kind", func(t *testing.T, p *plugin, _ *Kubelet) { p.write(t, "answer", "{}") }, "not a CredentialProviderResponse", nil},
		{"odd cache", func(t *testing.T, p *plugin, _ *Kubelet) { p.answer(t, "Moon", "", "") }, "cacheKeyType", nil},
		{"plugin fails", func(t *testing.T, p *plugin, _ *Kubelet) { p.write(t, "fail", "") }, "no metadata service", chunk.ErrUnavailable},
		{"plugin hangs", func(t *testing.T, p *plugin, k *Kubelet) { p.write(t, "hang", ""); k.Timeout = 50 * time.Millisecond }, "deadline", chunk.ErrUnavailable},
		{"no such plugin", func(t *testing.T, _ *plugin, k *Kubelet) { k.BinDir = t.TempDir() }, "no such file", chunk.ErrDenied},
		{"configuration is no YAML", func(t *testing.T, p *plugin, _ *Kubelet) { p.write(t, "config.yaml", "\t") }, "config.yaml", nil},
		{"another document", func(t *testing.T, p *plugin, _ *Kubelet) { p.write(t, "config.yaml", "kind: Pod") }, "not a CredentialProviderConfig", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, k := newPlugin(t, "")
			row.prepare(t, p, k)
			users, err := first(t, k, "a.test", "app", "")
			if len(users) > 0 || err == nil || !strings.Contains(err.Error(), row.want) {
				t.Fatalf("%q, %v; want an error with %q", users, err, row.want)
			}
			if row.class != nil && !errors.Is(err, row.class) {
				t.Errorf("%v is no %v", err, row.class)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q shows what the plugin printed", err)
			}
		})
	}
}

// TestServiceAccount has a plugin that only kubelet can ask.
func TestServiceAccount(t *testing.T) {
	p, k := newPlugin(t, "  tokenAttributes: {requireServiceAccount: true, serviceAccountTokenAudience: x}\n")
	if users, err := first(t, k, "a.test", "app", ""); len(users) > 0 || err != nil || p.runs(t) > 0 {
		t.Errorf("%q, %v, %d runs", users, err, p.runs(t))
	}
}

func TestParseProviders(t *testing.T) {
	head := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- "
	for _, row := range []struct{ name, text, want string }{
		{"good", "{name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1beta1, matchImages: [x], defaultCacheDuration: 0s}", ""},
		{"path", "{name: ../a, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x], defaultCacheDuration: 0s}", "name"},
		{"version", "{name: a, apiVersion: v9, matchImages: [x], defaultCacheDuration: 0s}", "v9"},
		{"no images", "{name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1, defaultCacheDuration: 0s}", "matchImages"},
		{"no duration", "{name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x]}", "defaultCacheDuration"},
		{"bad duration", "{name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x], defaultCacheDuration: soon}", "soon"},
		{"bad pattern", "{name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: ['[-'], defaultCacheDuration: 0s}", "pattern"},
	} {
		_, err := parseProviders([]byte(head + row.text))
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"b.yaml", "a.json"} {
		text := strings.Replace(head, "- ", "- {name: "+name+", apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x], defaultCacheDuration: 0s}", 1)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := readProviders(dir)
	if err != nil || len(list) != 2 || list[0].Name != "a.json" {
		t.Errorf("of a folder: %+v, %v", list, err)
	}
}

func TestPattern(t *testing.T) {
	for _, row := range []struct {
		pattern, image string
		want           bool
	}{
		{"r.test", "r.test/app", true},
		{"*.test", "r.test/app", true},
		{"*.test", "a.r.test/app", false},
		{"*.*.test", "a.r.test/app", true},
		{"a*.r.test", "ab.r.test/app", true},
		{"r.test/team", "r.test/team/app", true},
		{"r.test/team", "r.test/app", false},
		{"r.test:5000", "r.test:5000/app", true},
		{"r.test", "r.test:5000/app", false},
		{"https://r.test", "r.test/app", true},
		{"docker.io", "docker.io/library/app", true},
	} {
		p, err := parsePattern(row.pattern)
		if err != nil || p.matches(row.image) != row.want {
			t.Errorf("%s of %s: %v, %v", row.pattern, row.image, !row.want, err)
		}
	}
}

func TestMemory(t *testing.T) {
	var m Memory
	add := func(user string) { m.Add("r.test", "app", origin.Credential{Username: user}) }
	for _, user := range []string{"a", "b", "c", "d", "a", "e"} {
		add(user)
	}
	users, _ := first(t, &m, "r.test", "app", "")
	if diff := cmp.Diff([]string{"e:", "a:", "d:", "c:"}, users); diff != "" {
		t.Error(diff)
	}
	m.Remove("r.test", "app", origin.Credential{Username: "e"})
	m.Remove("r.test", "app", origin.Credential{Username: "nobody"})
	if users, _ := first(t, &m, "r.test", "app", "a"); len(users) != 1 {
		t.Errorf("after one was removed: %q", users)
	}
	if users, _ := first(t, &m, "r.test", "other", ""); len(users) > 0 {
		t.Errorf("of another repository: %q", users)
	}
	for i := range maxRepositories {
		m.Add("r.test", fmt.Sprint(i), origin.Credential{Username: "u"})
	}
	if users, _ := first(t, &m, "r.test", "app", ""); len(users) > 0 || m.order.Len() != maxRepositories || len(m.byKey) != maxRepositories {
		t.Errorf("the oldest repository is still there: %q", users)
	}
}

// TestChain stops asking sources once a credential is taken.
func TestChain(t *testing.T) {
	p, k := newPlugin(t, "")
	p.answer(t, "Image", "", `"*.test": {"username": "plugin", "password": "p"}`)
	var m Memory
	m.Add("a.test", "app", origin.Credential{Username: "memory"})
	chain := Chain{&m, k, origin.DockerConfig{Dir: t.TempDir()}}
	if users, err := first(t, chain, "a.test", "app", "memory"); len(users) != 1 || err != nil || p.runs(t) != 0 {
		t.Errorf("%q, %v, %d runs", users, err, p.runs(t))
	}
	users, err := first(t, chain, "a.test", "app", "")
	if diff := cmp.Diff([]string{"memory:", "plugin:p"}, users); diff != "" || err != nil {
		t.Error(diff, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for cred, err := range chain.Credentials(ctx, "b.test", "app") {
		if cred.Username != "" || err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("after the caller has gone: %+v, %v", cred.Username, err)
		}
	}
}

// TestSnapshot passes what is remembered on.
func TestSnapshot(t *testing.T) {
	var old, fresh Memory
	old.Add("r.test", "app", origin.Credential{Username: "a", Password: "1", Source: "x"})
	old.Add("r.test", "app", origin.Credential{Username: "b", IdentityToken: "2"})
	old.Add("s.test", "app", origin.Credential{RegistryToken: "3"})
	if err := errors.Join(fresh.Restore(nil), fresh.Restore(old.Snapshot())); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(old.Snapshot()), string(fresh.Snapshot())); diff != "" {
		t.Error(diff)
	}
	if err := fresh.Restore([]byte("hunter2")); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("no snapshot: %v", err)
	}
}
