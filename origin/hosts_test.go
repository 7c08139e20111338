package origin

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// writeFiles writes files below dir, by their relative names.
func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

const allSettings = `
server = "https://r.test"
capabilities = ["pull"]
skip_verify = true

# The order of the hosts is that of the file, not that of their names.
[host."https://z.test:8443"]
  capabilities = ["pull", "Resolve"]
  ca = "z.crt"
  client = [["z.cert", "/keys/z.key"], ["both.pem", "both.pem"]]
  dial_timeout = "1500ms"
  [host."https://z.test:8443".header]
    x-one = "1"
    X-Two = ["a", "b"]

[host."http://a.test/prefix/"]
  client = ["one.pem", "two.pem"]
  ca = ["/etc/a.crt", "b.crt"]

[host."m.test/api"]
  override_path = true
  client = "one.pem"
`

func TestParseHosts(t *testing.T) {
	own := hostConfig{can: canAll, header: http.Header{}}
	host := func(base string, can capability) hostConfig {
		return hostConfig{base: mustURL(base), can: can, header: http.Header{}}
	}
	tests := []struct {
		name, in string
		want     []hostConfig
		err      string
	}{
		{"empty", "", []hostConfig{own}, ""},
		{"all settings", allSettings, []hostConfig{
			{
				base: mustURL("https://z.test:8443/v2"), can: canPull | canResolve,
				ca: []string{"/d/z.crt"}, client: [][2]string{{"/d/z.cert", "/keys/z.key"}, {"/d/both.pem", "/d/both.pem"}},
				header: http.Header{"X-One": {"1"}, "X-Two": {"a", "b"}}, dialTimeout: 1500 * time.Millisecond,
			},
			{
				base: mustURL("http://a.test/prefix/v2"), can: canAll,
				ca:     []string{"/etc/a.crt", "/d/b.crt"},
				client: [][2]string{{"/d/one.pem", ""}, {"/d/two.pem", ""}}, header: http.Header{},
			},
			{base: mustURL("https://m.test/api"), can: canAll, client: [][2]string{{"/d/one.pem", ""}}, header: http.Header{}},
			{base: mustURL("https://r.test/v2"), can: canPull, skipVerify: true, header: http.Header{}},
		}, ""},
		{"no server", "capabilities = ['push']\n[host.'https://m.test']", []hostConfig{host("https://m.test/v2", canAll), own}, ""},
		{"path with v2", "server = 'https://r.test/x/v2'", []hostConfig{host("https://r.test/x/v2", canAll)}, ""},
		{"override of nothing", "server = 'https://r.test'\noverride_path = true", []hostConfig{host("https://r.test", canAll)}, ""},
		{"referrers", "server = 'r.test'\ncapabilities = ['referrers']", []hostConfig{host("https://r.test/v2", canReferrers)}, ""},
		{"no TOML", "server =", nil, "toml"},
		{"capability", "[host.'https://m.test']\ncapabilities = ['fly']", nil, `host "https://m.test": capability "fly"`},
		{"scheme", "server = 'ftp://r.test'", nil, `server: scheme "ftp"`},
		{"no host", "server = 'https:///v2'", nil, "not just scheme, host and path"},
		{"user in URL", "server = 'https://u:p@r.test'", nil, "not just scheme, host and path"},
		{"ca is a number", "ca = 1", nil, "ca: neither"},
		{"ca with a number", "ca = [1]", nil, "ca: element 0"},
		{"client of three", "client = [['a','b','c']]", nil, "client: element 0"},
		{"header of numbers", "[header]\na = 1", nil, `header "a"`},
		{"timeout", "dial_timeout = 'soon'", nil, "dial_timeout"},
		{"negative timeout", "dial_timeout = '-1s'", nil, "dial_timeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseHosts([]byte(tt.in), "/d")
			checkError(t, err, tt.err)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(hostConfig{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseHosts(f *testing.F) {
	f.Add(allSettings)
	f.Add("[host.'https://m.test']\n[host.'https://m.test'.header]\na = 1")
	f.Add("host = {'https://a.test' = {ca = ['x']}}")
	f.Fuzz(func(t *testing.T, s string) {
		hosts, err := parseHosts([]byte(s), "/d")
		if err != nil {
			return
		}
		if len(hosts) == 0 {
			t.Fatal("no hosts")
		}
		for i, h := range hosts {
			if h.base == nil && i < len(hosts)-1 && !strings.Contains(s, `""`) && !strings.Contains(s, "''") {
				t.Errorf("host %d has no URL", i)
			}
			if h.base != nil && (h.base.Host == "" || h.base.User != nil) {
				t.Errorf("host %d has URL %q", i, h.base)
			}
		}
	})
}

func TestLoadHosts(t *testing.T) {
	root := t.TempDir()
	server := func(name string) string { return "server = 'https://" + name + "'" }
	writeFiles(t, root, map[string]string{
		"r.test/hosts.toml":       server("plain"),
		"r.test_5000_/hosts.toml": server("underscore"),
		"p.test:5000/hosts.toml":  server("colon"),
		"_default/hosts.toml":     server("default"),
		"broken.test/hosts.toml":  "server = [",
		"certs.test/a.crt":        "",
		"certs.test/b.cert":       "",
		"certs.test/b.key":        "",
		"certs.test/c.cert":       "",
		"empty.test/hosts.toml":   "",
		"empty.test/a.crt":        "",
		"docker.io/hosts.toml":    server("hub"),
	})
	at := func(name string) string { return filepath.Join(root, name) }
	tests := []struct {
		name, registry string
		base           string
		ca             []string
		client         [][2]string
		err            string
	}{
		{"by name", "r.test", "https://plain/v2", nil, nil, ""},
		{"by name and port", "r.test:5000", "https://underscore/v2", nil, nil, ""},
		{"port with colon", "p.test:5000", "https://colon/v2", nil, nil, ""},
		{"default", "other.test", "https://default/v2", nil, nil, ""},
		{"docker.io", "docker.io", "https://hub/v2", nil, nil, ""},
		{"certificates", "certs.test", "", []string{at("certs.test/a.crt")}, [][2]string{
			{at("certs.test/b.cert"), at("certs.test/b.key")}, {at("certs.test/c.cert"), ""},
		}, ""},
		{"empty file", "empty.test", "", []string{at("empty.test/a.crt")}, nil, ""},
		{"broken file", "broken.test", "", nil, nil, at("broken.test/hosts.toml")},
		{"outside", "..", "", nil, nil, "can't be the name of a directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			hosts, err := loadHosts(root, tt.registry)
			checkError(t, err, tt.err)
			if err != nil {
				return
			}
			h := hosts[len(hosts)-1]
			base := ""
			if h.base != nil {
				base = h.base.String()
			}
			if base != tt.base {
				t.Errorf("base %q, want %q", base, tt.base)
			}
			if diff := cmp.Diff(tt.ca, h.ca); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.client, h.client); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOwnURL(t *testing.T) {
	tests := []struct {
		name, registry string
		cfg            Config
		host           hostConfig
		want           string
	}{
		{"remote", "r.test", Config{}, hostConfig{}, "https://r.test/v2"},
		{"docker.io", "docker.io", Config{}, hostConfig{}, "https://registry-1.docker.io/v2"},
		{"loopback", "localhost:5000", Config{}, hostConfig{}, "http://localhost:5000/v2"},
		{"loopback, port of HTTPS", "127.0.0.1:443", Config{}, hostConfig{}, "https://127.0.0.1:443/v2"},
		{"loopback with certificates", "[::1]:5000", Config{}, hostConfig{ca: []string{"x"}}, "https://[::1]:5000/v2"},
		{"all plain", "r.test", Config{PlainHTTP: true}, hostConfig{}, "http://r.test/v2"},
		{"this one plain", "r.test:5000", Config{PlainHTTPHosts: []string{"r.test:5000"}}, hostConfig{}, "http://r.test:5000/v2"},
		{"another plain", "r.test", Config{PlainHTTPHosts: []string{"r.test:5000"}}, hostConfig{}, "https://r.test/v2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := newClient(t, tt.cfg).ownURL(tt.registry, &tt.host).String(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
