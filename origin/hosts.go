package origin

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// A capability is a kind of request that a host may be used for.
type capability uint8

const (
	canPull      capability = 1 << iota // what is named by digest
	canResolve                          // what is named by tag
	canPush                             // uploads
	canReferrers                        // the referrers API

	canAll = canPull | canResolve | canPush | canReferrers
)

var capabilities = map[string]capability{
	"pull": canPull, "resolve": canResolve, "push": canPush, "referrers": canReferrers,
}

// A hostConfig is what hosts.toml says of one host.
type hostConfig struct {
	base        *url.URL // up to and with "/v2"; nil means the registry's own
	can         capability
	ca          []string    // files with trusted certificates
	client      [][2]string // files with certificate and key; the key may be in the first
	skipVerify  bool
	header      http.Header
	dialTimeout time.Duration // 0 means Timeouts.Connect
}

// tls reports whether the host has settings that only make sense with TLS.
func (c *hostConfig) tls() bool { return c.skipVerify || len(c.ca) > 0 || len(c.client) > 0 }

// hostsFileLimit bounds a hosts.toml and each certificate file.
const hostsFileLimit = 1 << 20

// loadHosts returns the hosts of a registry in the order in which they are to
// be asked, the registry's own last, as the directory root says.
func loadHosts(root, registry string) ([]hostConfig, error) {
	own := []hostConfig{{can: canAll}}
	if root == "" {
		return own, nil
	}
	dir, err := hostsDir(root, registry)
	if err != nil || dir == "" {
		return own, err
	}
	file := filepath.Join(dir, "hosts.toml")
	data, err := readLimited(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(data) == 0:
		return loadCertFiles(dir)
	case err != nil:
		return nil, err
	}
	hosts, err := parseHosts(data, dir)
	if err != nil {
		// Going on without the mirrors would hide the mistake behind slow pulls.
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return hosts, nil
}

// hostsDir returns the directory for a registry, "" if there is none.
func hostsDir(root, registry string) (string, error) {
	if !filepath.IsLocal(registry) || registry == "." {
		return "", fmt.Errorf("registry %.100q can't be the name of a directory in %s", registry, root)
	}
	names := []string{registry, "_default"}
	if host, port, ok := cutPort(registry); ok {
		names = slices.Insert(names, 0, host+"_"+port+"_")
	}
	for _, name := range names {
		dir := filepath.Join(root, name)
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}

func cutPort(hostport string) (host, port string, ok bool) {
	i := strings.LastIndexByte(hostport, ':')
	if i <= 0 {
		return hostport, "", false
	}
	return hostport[:i], hostport[i+1:], true
}

// hostTable is one [host."…"] table of hosts.toml, or its top level.
type hostTable struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   bool           `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// parseHosts reads a hosts.toml. Relative names of files are taken from dir.
func parseHosts(data []byte, dir string) ([]hostConfig, error) {
	var file struct {
		hostTable
		Server string               `toml:"server"`
		Host   map[string]hostTable `toml:"host"`
	}
	meta, err := toml.Decode(string(data), &file)
	if err != nil {
		return nil, err
	}
	var hosts []hostConfig
	seen := make(map[string]bool)
	for _, key := range meta.Keys() { // in the order of the file
		if len(key) < 2 || key[0] != "host" || seen[key[1]] {
			continue
		}
		seen[key[1]] = true
		h, err := file.Host[key[1]].config(key[1], dir)
		if err != nil {
			return nil, fmt.Errorf("host %.200q: %w", key[1], err)
		}
		hosts = append(hosts, h)
	}
	own, err := file.config(file.Server, dir)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if own.base == nil {
		own.can = canAll // capabilities at the top level go with server
	}
	return append(hosts, own), nil
}

// config checks and completes a table. An empty server gives a nil base.
func (t hostTable) config(server, dir string) (c hostConfig, err error) {
	if c.base, err = parseServer(server, t.OverridePath); err != nil {
		return c, err
	}
	for _, name := range t.Capabilities {
		bit, ok := capabilities[strings.ToLower(name)]
		if !ok {
			return c, fmt.Errorf("capability %.50q is none of pull, resolve, push and referrers", name)
		}
		c.can |= bit
	}
	if len(t.Capabilities) == 0 {
		c.can = canAll
	}
	if c.ca, err = stringOrList(t.CA); err != nil {
		return c, fmt.Errorf("ca: %w", err)
	}
	for i := range c.ca {
		c.ca[i] = absPath(c.ca[i], dir)
	}
	if c.client, err = clientPairs(t.Client, dir); err != nil {
		return c, fmt.Errorf("client: %w", err)
	}
	c.header = make(http.Header, len(t.Header))
	for name, v := range t.Header {
		if c.header[http.CanonicalHeaderKey(name)], err = stringOrList(v); err != nil {
			return c, fmt.Errorf("header %.50q: %w", name, err)
		}
	}
	if t.DialTimeout != "" {
		if c.dialTimeout, err = time.ParseDuration(t.DialTimeout); err != nil {
			return c, fmt.Errorf("dial_timeout: %w", err)
		}
		if c.dialTimeout <= 0 {
			return c, fmt.Errorf("dial_timeout %v is not over zero", c.dialTimeout)
		}
	}
	c.skipVerify = t.SkipVerify
	return c, nil
}

// parseServer returns the URL below which a host's repositories are.
func parseServer(server string, overridePath bool) (*url.URL, error) {
	if server == "" {
		return nil, nil
	}
	if !strings.Contains(server, "://") {
		server = "https://" + server
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("scheme %.20q is neither http nor https", u.Scheme)
	}
	if u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("URL is not just scheme, host and path")
	}
	base := &url.URL{Scheme: u.Scheme, Host: u.Host}
	if u.Path != "" {
		base.Path = strings.TrimSuffix(path.Clean(u.Path), "/")
	}
	if !overridePath && !strings.HasSuffix(base.Path, "/v2") {
		base.Path += "/v2"
	}
	return base, nil
}

// stringOrList accepts nothing, a string, or a list of strings.
func stringOrList(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		list := make([]string, len(v))
		for i, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, fmt.Errorf("element %d is no string", i)
			}
			list[i] = s
		}
		return list, nil
	}
	return nil, errors.New("neither a string nor a list of strings")
}

// clientPairs accepts a file, a list of files, or a list of pairs of files.
func clientPairs(v any, dir string) ([][2]string, error) {
	items, ok := v.([]any)
	if !ok {
		one, err := stringOrList(v)
		if err != nil || one == nil {
			return nil, err
		}
		return [][2]string{{absPath(one[0], dir), ""}}, nil
	}
	pairs := make([][2]string, 0, len(items))
	for i, item := range items {
		files, err := stringOrList(item)
		_, isList := item.([]any)
		switch {
		case err != nil:
			return nil, fmt.Errorf("element %d: %w", i, err)
		case isList && len(files) == 2:
			pairs = append(pairs, [2]string{absPath(files[0], dir), absPath(files[1], dir)})
		case !isList && len(files) == 1:
			pairs = append(pairs, [2]string{absPath(files[0], dir), ""})
		default:
			return nil, fmt.Errorf("element %d is no pair of certificate and key", i)
		}
	}
	return pairs, nil
}

func absPath(name, dir string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// loadCertFiles reads a directory in Docker's layout: *.crt are trusted, *.cert
// with *.key are the client's.
func loadCertFiles(dir string) ([]hostConfig, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	c := hostConfig{can: canAll}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		switch filepath.Ext(file) {
		case ".crt":
			c.ca = append(c.ca, file)
		case ".cert":
			key := strings.TrimSuffix(file, ".cert") + ".key"
			if _, err := os.Stat(key); errors.Is(err, fs.ErrNotExist) {
				key = ""
			} else if err != nil {
				return nil, err
			}
			c.client = append(c.client, [2]string{file, key})
		}
	}
	return []hostConfig{c}, nil
}

// readLimited reads a file of at most hostsFileLimit bytes.
func readLimited(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > hostsFileLimit {
		return nil, fmt.Errorf("%s has %d bytes, over %d", name, info.Size(), hostsFileLimit)
	}
	return os.ReadFile(name)
}
