package origin

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

func TestResolve(t *testing.T) {
	f := newFake()
	host := serve(t, f)
	amd := f.addImage("amd", platform("linux/amd64"))
	arm := f.addImage("", platform("linux/arm64"))
	index := f.addManifest("multi", v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{amd, arm},
	})
	inner := index
	inner.MediaType, inner.Platform = types.OCIImageIndex, nil
	outer := f.addManifest("nested", v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{inner}})
	artifactConfig := f.addBlob([]byte("{}"))
	f.addManifest("artifact", v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: artifactConfig})
	large := artifactConfig
	large.MediaType, large.Size = types.OCIConfigJSON, maxConfig+1
	f.addManifest("large", v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: large})
	f.manifests["html"] = []byte("<html>sign in</html>")
	other := f.addImage("", platform("linux/s390x"))
	f.manifests[other.Digest.String()] = f.manifests["amd"]

	tests := []struct {
		name, ref, platform string
		digest, index       v1.Descriptor
		err                 string
		class               error
	}{
		{"single", "amd", "linux/amd64", amd, v1.Descriptor{}, "", nil},
		{"single of another platform", "amd", "linux/arm64", v1.Descriptor{}, v1.Descriptor{}, "image is for linux/amd64 only, not for linux/arm64", nil},
		{"from an index", "multi", "linux/arm64", arm, index, "", nil},
		{"from a nested index", "nested", "linux/arm64", arm, outer, "", nil},
		{"platform is not there", "multi", "linux/s390x", v1.Descriptor{}, v1.Descriptor{}, "only for \"linux/amd64, linux/arm64\"", nil},
		{"by digest of the index", "@" + index.Digest.String(), "linux/amd64", amd, index, "", nil},
		{"by digest", "@" + arm.Digest.String(), "linux/arm64", arm, v1.Descriptor{}, "", nil},
		{"digest is another's", "@" + other.Digest.String(), "linux/amd64", v1.Descriptor{}, v1.Descriptor{}, "manifest has digest " + amd.Digest.String(), chunk.ErrCorrupt},
		{"not found", "none", "", v1.Descriptor{}, v1.Descriptor{}, `status 404 Not Found "UNKNOWN" "no such thing"`, chunk.ErrNotFound},
		{"artifact", "artifact", "", v1.Descriptor{}, v1.Descriptor{}, "this is an artifact", nil},
		{"large config", "large", "", v1.Descriptor{}, v1.Descriptor{}, "over 16777216", nil},
		{"login page", "html", "", v1.Descriptor{}, v1.Descriptor{}, "not valid JSON", chunk.ErrCorrupt},
		{"bad reference", "a b", "", v1.Descriptor{}, v1.Descriptor{}, "not valid", nil},
	}
	c := newClient(t, Config{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ref := host + "/app:" + tt.ref
			if strings.HasPrefix(tt.ref, "@") {
				ref = host + "/app" + tt.ref
			}
			img, err := resolve(context.Background(), c, ref, platform(tt.platform))
			checkError(t, err, tt.err)
			if err != nil {
				if tt.class != nil && !errors.Is(err, tt.class) {
					t.Errorf("error %q is no %v", err, tt.class)
				}
				return
			}
			if img.Digest != chunk.Blob(tt.digest.Digest.String()) {
				t.Errorf("digest %s, want %s", img.Digest, tt.digest.Digest)
			}
			again, err := openKept(ref, img.Manifest, img.Config, platform(tt.platform))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(img, again); diff != "" {
				t.Error("what was kept gives another image:", diff)
			}
			if _, err := readRange(c.Blob(img.Repository, img.Layers[0].Digest, img.Layers[0].Size), 0, img.Layers[0].Size); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestResolveDefaultPlatform(t *testing.T) {
	f := newFake()
	d := f.addImage("a", v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	img, err := resolve(context.Background(), newClient(t, Config{}), serve(t, f)+"/app:a", v1.Platform{})
	if err != nil || img.Digest != chunk.Blob(d.Digest.String()) {
		t.Errorf("%v, %v", img, err)
	}
}

// answer returns a handler with one status.
func answerWith(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }
}

func TestMirrors(t *testing.T) {
	other := newFake()
	other.addImage("a", platform("linux/s390x"))
	wrong := newFake()
	wrong.before = func(w http.ResponseWriter, r *http.Request) bool {
		io.WriteString(w, `{"schemaVersion":2,"manifests":[]}`)
		return true
	}
	good := func() *fake {
		f := newFake()
		f.addImage("a", platform("linux/amd64"))
		return f
	}
	tests := []struct {
		name    string
		own     http.Handler
		mirrors []http.Handler
		err     string
		class   error
	}{
		{"mirror has it", answerWith(500), []http.Handler{good()}, "", nil},
		{"mirror has it not", good(), []http.Handler{newFake()}, "", nil},
		{"mirror refuses", good(), []http.Handler{answerWith(401), answerWith(403)}, "", nil},
		{"mirror fails", good(), []http.Handler{answerWith(500)}, "", nil},
		{"mirror is no registry", good(), []http.Handler{answerWith(400)}, "", nil},
		{"mirror sends other bytes", good(), []http.Handler{wrong}, "", nil},
		{"second mirror has it", answerWith(500), []http.Handler{answerWith(502), good()}, "", nil},
		{"registry's word counts", newFake(), []http.Handler{answerWith(500)}, "status 404", chunk.ErrNotFound},
		{"registry is away", answerWith(503), []http.Handler{newFake()}, "status 503", chunk.ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, host := mirrored(t, tt.own, tt.mirrors...)
			d := good().addImage("a", platform("linux/amd64"))
			img, err := resolve(context.Background(), c, host+"/app@"+d.Digest.String(), platform("linux/amd64"))
			checkError(t, err, tt.err)
			if tt.class != nil && !errors.Is(err, tt.class) {
				t.Errorf("error %q is no %v", err, tt.class)
			}
			if err == nil {
				if _, err := readRange(c.Blob(img.Repository, img.Layers[0].Digest, img.Layers[0].Size), 1, 3); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A mirror learns whose repository is meant, and gets the headers of its entry;
// the registry gets neither.
func TestMirrorRequests(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[string]http.Header)
	record := func(f *fake, name string) *fake {
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			seen[name+" "+r.URL.Path+"?"+r.URL.RawQuery] = r.Header.Clone()
			return false
		}
		return f
	}
	own := record(newFake(), "own")
	own.addImage("a", platform("linux/amd64"))
	ownHost, mirror := serve(t, own), serve(t, record(newFake(), "mirror"))
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"r.test/hosts.toml": `
server = 'http://` + ownHost + `/v2'
[host.'http://` + mirror + `/proxy']
override_path = true
capabilities = ['resolve']
header = {X-Key = 'k', User-Agent = 'other'}
`})
	c := newClient(t, Config{HostsDir: dir, UserAgent: "test/1"})
	img, err := resolve(context.Background(), c, "r.test/app:a", platform("linux/amd64"))
	if err != nil {
		t.Fatal(err)
	}
	h := seen["mirror /proxy/app/manifests/a?ns=r.test"]
	if h.Get("X-Key") != "k" || h.Get("User-Agent") != "other" {
		t.Errorf("mirror got %v", h)
	}
	h = seen["own /v2/app/manifests/a?ns=r.test"]
	if h.Get("X-Key") != "" || h.Get("User-Agent") != "test/1" {
		t.Errorf("registry got %v", h)
	}
	// The mirror resolves tags, but is not for pulls.
	if _, err := c.FetchManifest(context.Background(), "r.test/app", string(img.Digest)); err != nil {
		t.Fatal(err)
	}
	if _, asked := seen["mirror /proxy/app/manifests/"+string(img.Digest)+"?ns=r.test"]; asked {
		t.Error("mirror was asked for what it can't do")
	}
}

func TestFetchBlob(t *testing.T) {
	good, bad := newFake(), newFake()
	data := random(5000)
	d := good.addBlob(data)
	bad.blobs[d.Digest.String()] = random(5000 - 1)
	flipped := append([]byte{data[0] ^ 1}, data[1:]...)
	long := newFake()
	long.blobs[d.Digest.String()] = append(flipped, 1)
	tooLarge := d
	tooLarge.Size = maxWhole + 1
	tests := []struct {
		name    string
		own     http.Handler
		mirrors []http.Handler
		d       v1.Descriptor
		err     string
	}{
		{"good", good, nil, d, ""},
		{"mirror has other bytes", good, []http.Handler{bad, long}, d, ""},
		{"too few bytes", bad, nil, d, "4999 bytes with digest"},
		{"too many bytes", long, nil, d, "answer has over 5000 bytes"},
		{"too large", good, nil, tooLarge, "over 134217728"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, host := mirrored(t, tt.own, tt.mirrors...)
			got, err := c.FetchBlob(context.Background(), host+"/app", tt.d)
			checkError(t, err, tt.err)
			if err == nil && string(digestOf(got)) != tt.d.Digest.String() {
				t.Error("wrong bytes")
			}
		})
	}
}

func TestSchemeHints(t *testing.T) {
	f := newFake()
	f.addImage("a", platform("linux/amd64"))
	plain := serve(t, f)
	s := httptest.NewUnstartedServer(f)
	s.Config.ErrorLog = discardLog()
	s.StartTLS()
	t.Cleanup(s.Close)
	secure := strings.TrimPrefix(s.URL, "https://")
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"plain.test/hosts.toml":  "server = 'https://" + plain + "'",
		"secure.test/hosts.toml": "server = 'https://" + secure + "'",
		"skip.test/hosts.toml":   "server = 'https://" + secure + "'\nskip_verify = true",
	})
	c := newClient(t, Config{HostsDir: dir})
	for _, tt := range []struct{ name, host, err string }{
		{"TLS to plain HTTP", "plain.test", "use --plain-http"},
		{"plain HTTP to TLS", secure, "don't use --plain-http"},
		{"unknown authority", "secure.test", "as ca in hosts.toml"},
		{"not verified", "skip.test", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := resolve(context.Background(), c, tt.host+"/app:a", platform("linux/amd64"))
			checkError(t, err, tt.err)
			if errors.Is(err, chunk.ErrUnavailable) {
				t.Error("asking again would not help")
			}
		})
	}
}

func TestNewRejects(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		err  string
	}{
		{"timeout", Config{Timeouts: Timeouts{Stall: -1}}, "Timeouts.Stall is negative"},
		{"back-off", Config{Retry: Retry{MinBackoff: 2, MaxBackoff: 1}}, "is over Retry.MaxBackoff"},
		{"attempts", Config{Retry: Retry{Attempts: -1}}, "Retry.Attempts is negative"},
		{"requests", Config{HostRequests: -1}, "HostRequests is negative"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.cfg)
			checkError(t, err, tt.err)
		})
	}
}

// A registry that wants a client certificate gets that of hosts.toml, also when
// the files are exchanged.
func TestClientCertificates(t *testing.T) {
	ca := newAuthority(t)
	f := newFake()
	f.addImage("a", platform("linux/amd64"))
	f.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.ProtoMajor != 2 {
			t.Errorf("request by %s", r.Proto)
		}
		return false
	}
	s := httptest.NewUnstartedServer(f)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool,
		Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1").tls},
	}
	s.Config.ErrorLog = discardLog()
	s.StartTLS()
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "https://")
	node := ca.issue(t, "node")
	stranger := newAuthority(t).issue(t, "stranger")
	tests := []struct {
		name  string
		files map[string]string
		err   string
	}{
		{"pair", map[string]string{
			"hosts.toml": "server = 'https://" + host + "'\nca = 'ca.crt'\nclient = [['n.cert', 'n.key']]",
			"ca.crt":     ca.pem, "n.cert": node.cert, "n.key": node.key,
		}, ""},
		{"one file", map[string]string{
			"hosts.toml": "server = 'https://" + host + "'\nca = ['ca.crt']\nclient = 'n.pem'",
			"ca.crt":     ca.pem, "n.pem": node.cert + node.key,
		}, ""},
		{"Docker's layout", map[string]string{"ca.crt": ca.pem, "n.cert": node.cert, "n.key": node.key}, ""},
		{"none", map[string]string{
			"hosts.toml": "server = 'https://" + host + "'\nca = 'ca.crt'", "ca.crt": ca.pem,
		}, "asks for a client certificate"},
		{"of another authority", map[string]string{
			"hosts.toml": "server = 'https://" + host + "'\nca = 'ca.crt'\nclient = [['n.cert', 'n.key']]",
			"ca.crt":     ca.pem, "n.cert": stranger.cert, "n.key": stranger.key,
		}, "was shown the client certificate"},
		{"key is another's", map[string]string{
			"hosts.toml": "server = 'https://" + host + "'\nclient = [['n.cert', 'n.key']]",
			"n.cert":     node.cert, "n.key": stranger.key,
		}, "private key does not match"},
		{"file is missing", map[string]string{"hosts.toml": "ca = 'ca.crt'"}, "no such file"},
		{"file is no certificate", map[string]string{"hosts.toml": "ca = 'ca.crt'", "ca.crt": "x"}, "no certificate in PEM form"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, name := t.TempDir(), "r.test"
			if tt.name == "Docker's layout" {
				name = host
			}
			for file, content := range tt.files {
				writeFiles(t, dir, map[string]string{name + "/" + file: content})
			}
			_, err := resolve(context.Background(), newClient(t, Config{HostsDir: dir}), name+"/app:a", platform("linux/amd64"))
			checkError(t, err, tt.err)
		})
	}
}

// A registry that sends its requests on to another one (and that wants tokens)
// works without credentials for the second.
func TestRedirectToRegistry(t *testing.T) {
	second := newFake()
	d := second.addImage("a", platform("linux/amd64"))
	tokens := newTokenServer()
	secondHost := serve(t, tokens.protect(second))
	tokens.realm = "http://" + secondHost + "/token"
	first := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := url.URL{Scheme: "http", Host: secondHost, Path: r.URL.Path}
		http.Redirect(w, r, u.String(), http.StatusTemporaryRedirect)
	})
	c := newClient(t, Config{Keychain: fixedKeychain{Username: "u", Password: "p"}})
	img, err := resolve(context.Background(), c, serve(t, first)+"/app:a", platform("linux/amd64"))
	if err != nil {
		t.Fatal(err)
	}
	if img.Digest != chunk.Blob(d.Digest.String()) {
		t.Errorf("digest %s", img.Digest)
	}
	if got, err := readRange(c.Blob(img.Repository, img.Layers[0].Digest, img.Layers[0].Size), 2, 3); err != nil || string(got) != "yer" {
		t.Errorf("%q, %v", got, err)
	}
	if users := tokens.users(); strings.Join(users, "") != "" {
		t.Errorf("credentials were sent: %q", users)
	}
}
