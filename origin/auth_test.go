package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
)

// fixedKeychain has one credential for all.
type fixedKeychain Credential

func (k fixedKeychain) Credentials(context.Context, string, string) iter.Seq2[Credential, error] {
	return func(yield func(Credential, error) bool) { yield(Credential(k), nil) }
}

// A tokenServer issues tokens that live for a while, and lets a registry demand
// them.
type tokenServer struct {
	realm string
	life  time.Duration
	user  string // "user:password" that it wants; empty: anybody
	delay time.Duration

	mu     sync.Mutex
	tokens map[string]issuedToken // guarded by mu
	asked  []string               // "user scope scope…" of each request; guarded by mu
}

type issuedToken struct {
	scopes []string
	expiry time.Time
}

func newTokenServer() *tokenServer {
	return &tokenServer{life: time.Minute, tokens: make(map[string]issuedToken)}
}

func (s *tokenServer) users() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var users []string
	for _, line := range s.asked {
		user, _, _ := strings.Cut(line, " ")
		users = append(users, user)
	}
	return users
}

func (s *tokenServer) count() int { return len(s.users()) }

// revoke makes all tokens invalid.
func (s *tokenServer) revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(s.delay)
	user, pass, _ := r.BasicAuth()
	r.ParseForm()
	scopes := r.Form["scope"]
	if r.Method == http.MethodPost {
		user, scopes = "refresh:"+r.Form.Get("refresh_token"), strings.Fields(r.Form.Get("scope"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, user+" "+strings.Join(scopes, " "))
	if s.user != "" && s.user != user+":"+pass {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`)
		return
	}
	token := fmt.Sprintf("token-%d", len(s.asked))
	s.tokens[token] = issuedToken{scopes, time.Now().Add(s.life)}
	json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": s.life.Seconds()})
}

// protect returns a handler that lets requests with a good token through to h,
// and serves tokens at /token.
func (s *tokenServer) protect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			s.ServeHTTP(w, r)
			return
		}
		repo := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")[0]
		scope := "repository:" + repo + ":pull"
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			scope += ",push"
		}
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		s.mu.Lock()
		t, ok := s.tokens[token]
		s.mu.Unlock()
		may := slices.ContainsFunc(t.scopes, func(have string) bool { return strings.HasPrefix(have, scope) })
		if !ok || time.Now().After(t.expiry) || !may {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="test",scope=%q`, s.realm, scope))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memNet
		f := newFake()
		f.addImage("a", platform("linux/amd64"))
		tokens := newTokenServer()
		tokens.realm, tokens.user = "http://auth.test/token", "u:p"
		serveMem(t, &net, "r.test", tokens.protect(f))
		serveMem(t, &net, "auth.test", tokens)
		c := newClient(t, Config{PlainHTTP: true, Dial: net.dial, Keychain: fixedKeychain{Username: "u", Password: "p"}})

		img, err := resolve(t.Context(), c, "r.test/app:a", platform("linux/amd64"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"u repository:app:pull"}, tokens.asked); diff != "" {
			t.Error(diff)
		}
		blob := c.Blob(img.Repository, img.Layers[0].Digest, img.Layers[0].Size)
		read := func() {
			t.Helper()
			if _, err := readRange(blob, 0, 5); err != nil {
				t.Fatal(err)
			}
		}
		read()
		if n := tokens.count(); n != 1 {
			t.Errorf("%d tokens for one repository", n)
		}
		time.Sleep(49 * time.Second) // the token is renewed before it expires
		read()
		if n := tokens.count(); n != 2 {
			t.Errorf("%d tokens after 80 %% of the first one's life", n)
		}

		// One that is no longer accepted is replaced, once for all.
		tokens.revoke()
		tokens.delay = time.Second
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(read)
		}
		wg.Wait()
		if n := tokens.count(); n != 3 {
			t.Errorf("%d tokens after one was revoked, want 3", n)
		}
		// Another repository needs its own, and doesn't have to be refused first.
		before := len(f.requests(""))
		if _, err := c.FetchManifest(t.Context(), "r.test/other", "a"); err != nil {
			t.Fatal(err)
		}
		if got := tokens.asked[len(tokens.asked)-1]; got != "u repository:other:pull" {
			t.Errorf("asked for %q", got)
		}
		if n := len(f.requests("")) - before; n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

func TestAuthorization(t *testing.T) {
	good := Credential{Username: "u", Password: "p", Source: "the test"}
	basic := func(w http.ResponseWriter, r *http.Request) bool {
		if user, pass, ok := r.BasicAuth(); ok && user == "u" && pass == "p" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	bearer := func(realm string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Authorization") == "Bearer static" {
				return false
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
	}
	noPost := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, pass, _ := r.BasicAuth(); r.Method == http.MethodPost || user != "<token>" || pass != "id" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, `{"access_token":"static"}`)
	})
	issuer := func(body string) string {
		return "http://" + serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, body) }))
	}
	broken := keychainFunc(func() (Credential, error) { return Credential{}, errors.New("keychain is broken") })
	tests := []struct {
		name  string
		keys  Keychain
		ask   func(w http.ResponseWriter, r *http.Request) bool
		err   string
		class error
	}{
		{"basic", fixedKeychain(good), basic, "", nil},
		{"basic without credentials", nil, basic, "no credentials are configured", chunk.ErrDenied},
		{"basic, none found", fixedKeychain{Source: "/x/config.json"}, basic, "no credentials in /x/config.json", chunk.ErrDenied},
		{"basic, wrong password", fixedKeychain{Username: "u", Password: "no", Source: "the test"}, basic, `with credentials of "u" from the test`, chunk.ErrDenied},
		{"registry token", fixedKeychain{RegistryToken: "static"}, bearer("https://unused.test"), "", nil},
		{"wrong registry token", fixedKeychain{RegistryToken: "x", Source: "the test"}, bearer("https://unused.test"), "with a token from the test", chunk.ErrDenied},
		{"identity token", fixedKeychain{IdentityToken: "id"}, bearer(issuer(`{"access_token":"static"}`)), "", nil},
		{"identity token without POST", fixedKeychain{IdentityToken: "id"}, bearer("http://" + serve(t, noPost)), "", nil},
		{"anonymous token", nil, bearer(issuer(`{"token":"static"}`)), "", nil},
		{"answer without token", nil, bearer(issuer(`{}`)), "the answer has no token", chunk.ErrDenied},
		{"answer is no JSON", nil, bearer(issuer(`secret`)), "no JSON document", chunk.ErrDenied},
		{"token with a line break", nil, bearer(issuer(`{"token":"a\r\nb"}`)), "the answer has no token", chunk.ErrDenied},
		{"token service refuses", fixedKeychain(good), bearer("http://" + serve(t, answerWith(401))), `with credentials of "u" from the test`, chunk.ErrDenied},
		{"token service is away", fixedKeychain(good), bearer("http://" + serve(t, answerWith(503))), "status 503", chunk.ErrUnavailable},
		{"realm is a file", nil, bearer("file:///etc/passwd"), "is no URL", chunk.ErrDenied},
		{"realm is a metadata service", fixedKeychain(good), bearer("http://169.254.169.254/"), "link-local", chunk.ErrDenied},
		{"keychain fails", broken, basic, "keychain is broken", chunk.ErrDenied},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake()
			f.addImage("a", platform("linux/amd64"))
			f.before = tt.ask
			_, err := resolve(t.Context(), newClient(t, Config{Keychain: tt.keys}), serve(t, f)+"/app:a", platform("linux/amd64"))
			checkError(t, err, tt.err)
			if tt.class != nil && !errors.Is(err, tt.class) {
				t.Errorf("error %q is no %v", err, tt.class)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q shows what the token service sent", err)
			}
		})
	}
}

// TestPassingChallenge has a registry that needs no credentials ask for some
// once, as a gateway in trouble does. Later requests must not fail for that.
func TestPassingChallenge(t *testing.T) {
	for _, tt := range []struct {
		name, challenge string
	}{
		{"basic", `Basic realm="r"`},
		{"token service that refuses", `Bearer realm="http://` + serve(t, answerWith(403)) + `/token"`},
		{"token service that is away", `Bearer realm="http://` + serve(t, answerWith(404)) + `/token"`},
		{"realm is no URL", `Bearer realm="nowhere"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake()
			f.addImage("a", platform("linux/amd64"))
			var asked atomic.Bool
			f.before = func(w http.ResponseWriter, _ *http.Request) bool {
				if asked.Swap(true) {
					return false
				}
				w.Header().Set("WWW-Authenticate", tt.challenge)
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
			c, repository := newClient(t, Config{}), serve(t, f)+"/app"
			if _, err := c.FetchManifest(t.Context(), repository, "a"); !errors.Is(err, chunk.ErrDenied) {
				t.Errorf("first request: %v, want %v", err, chunk.ErrDenied)
			}
			if _, err := c.FetchManifest(t.Context(), repository, "a"); err != nil {
				t.Error("second request: ", err)
			}
		})
	}
}

type keychainFunc func() (Credential, error)

func (f keychainFunc) Credentials(context.Context, string, string) iter.Seq2[Credential, error] {
	return func(yield func(Credential, error) bool) { yield(f()) }
}

func TestCheckRealm(t *testing.T) {
	secure := &endpoint{base: mustURL("https://r.test/v2")}
	plain := &endpoint{base: mustURL("http://r.test/v2")}
	for _, tt := range []struct {
		name  string
		e     *endpoint
		realm string
		err   string
	}{
		{"secure", secure, "https://auth.test/token", ""},
		{"in the clear", secure, "http://auth.test/token", "not https"},
		{"in the clear, like the registry", plain, "http://auth.test/token", ""},
		{"private address", secure, "https://10.0.0.1/token", ""},
		{"link-local", secure, "https://169.254.169.254/token", "link-local"},
		{"link-local, version 6", secure, "https://[fe80::1]/token", "link-local"},
		{"relative", secure, "/token", "no URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := checkRealm(tt.realm, tt.e)
			checkError(t, err, tt.err)
		})
	}
}

// helperScript is a credential helper: it knows one server.
const helperScript = `#!/bin/sh
read -r server
case "$1 $server" in
"get known.test") echo '{"ServerURL":"known.test","Username":"hu","Secret":"hp"}' ;;
"get token.test") echo '{"Username":"<token>","Secret":"ht"}' ;;
"get broken.test") echo 'vault is sealed' >&2; exit 1 ;;
"get html.test") echo '<html>' ;;
"get long.test") head -c 1000000 /dev/zero ;;
*) echo 'credentials not found in native keychain'; exit 1 ;;
esac
`

func TestDockerConfig(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte(helperScript), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	const conf = `{
		"auths": {
			"r.test": {"auth": "dTpwOng="},
			"r.test/deep": {"username": "deep", "password": "p"},
			"https://index.docker.io/v1/": {"auth": "aHViOnB3"},
			"https://v1.test/v1/": {"auth": "dTpw"},
			"id.test": {"identitytoken": "idt"},
			"empty.test": {},
			"bad.test": {"auth": "!"},
			"nocolon.test": {"auth": "dQ=="}
		},
		"credHelpers": {"known.test": "test", "token.test": "test", "broken.test": "test", "unknown.test": "test",
			"html.test": "test", "long.test": "test", "missing.test": "nosuchhelper", "path.test": "../x"}
	}`
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"a/config.json": conf, "broken/config.json": "{",
		"store/config.json": `{"auths": {"known.test": {}}, "credsStore": "test"}`,
	})
	helper := "docker-credential-test (named by " + filepath.Join(dir, "a/config.json") + ")"
	tests := []struct {
		name, dir, host, repo string
		want                  Credential // without Source
		source                string
		err                   string
		class                 error
	}{
		{"auth", "a", "r.test", "x", Credential{Username: "u", Password: "p:x"}, "config.json", "", nil},
		{"for a repository", "a", "r.test", "deep", Credential{Username: "deep", Password: "p"}, "config.json", "", nil},
		{"docker.io", "a", "docker.io", "library/x", Credential{Username: "hub", Password: "pw"}, "config.json", "", nil},
		{"old key", "a", "v1.test", "x", Credential{Username: "u", Password: "p"}, "config.json", "", nil},
		{"identity token", "a", "id.test", "x", Credential{IdentityToken: "idt"}, "config.json", "", nil},
		{"empty entry", "a", "empty.test", "x", Credential{}, "config.json", "", nil},
		{"no entry", "a", "other.test", "x", Credential{}, "config.json", "", nil},
		{"no file", "none", "r.test", "x", Credential{}, "none/config.json", "", nil},
		{"helper", "a", "known.test", "x", Credential{Username: "hu", Password: "hp"}, helper, "", nil},
		{"helper with token", "a", "token.test", "x", Credential{IdentityToken: "ht"}, helper, "", nil},
		{"helper has none", "a", "unknown.test", "x", Credential{}, helper, "", nil},
		{"store", "store", "known.test", "x", Credential{Username: "hu", Password: "hp"}, "docker-credential-test", "", nil},
		{"store has none", "store", "other.test", "x", Credential{}, "docker-credential-test", "", nil},
		{"helper fails", "a", "broken.test", "x", Credential{}, "", "vault is sealed", chunk.ErrUnavailable},
		{"helper is missing", "a", "missing.test", "x", Credential{}, "", "docker-credential-nosuchhelper", chunk.ErrDenied},
		{"helper says nonsense", "a", "html.test", "x", Credential{}, "", "not JSON", nil},
		{"helper says too much", "a", "long.test", "x", Credential{}, "", "not JSON", nil},
		{"helper is a path", "a", "path.test", "x", Credential{}, "", "not a plain name", nil},
		{"file is broken", "broken", "r.test", "x", Credential{}, "", "broken/config.json", nil},
		{"not base64", "a", "bad.test", "x", Credential{}, "", "not base64", nil},
		{"no password", "a", "nocolon.test", "x", Credential{}, "", "not user:password", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := DockerConfig{Dir: filepath.Join(dir, tt.dir)}.credential(t.Context(), tt.host, tt.repo)
			checkError(t, err, tt.err)
			if err != nil {
				if tt.class != nil && !errors.Is(err, tt.class) {
					t.Errorf("error %q is no %v", err, tt.class)
				}
				return
			}
			if !strings.Contains(got.Source, tt.source) {
				t.Errorf("source %q, want %q", got.Source, tt.source)
			}
			got.Source = ""
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestLimitedBuffer(t *testing.T) {
	var b limitedBuffer
	// As os/exec does, which prefers ReadFrom.
	if n, err := io.Copy(&b, bytes.NewReader(make([]byte, 1_000_000))); n != 1_000_000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if b.buf.Len() != 64<<10 {
		t.Errorf("kept %d bytes", b.buf.Len())
	}
}

// A credential helper that hangs ends with its caller.
func TestHelperCancelled(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-hang"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	writeFiles(t, dir, map[string]string{"config.json": `{"credsStore": "hang"}`})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (DockerConfig{Dir: dir}).credential(ctx, "r.test", "x"); err != context.Canceled {
		t.Errorf("error %v", err)
	}
}
