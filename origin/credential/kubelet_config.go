package credential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// maxProviderConfig bounds kubelet's configuration file, in bytes.
const maxProviderConfig = 1 << 20

// The versions of kubelet's file and of what plugins speak. Those of one kind
// differ in nothing that is used here.
var (
	configVersions = []string{"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"}
	pluginVersions = []string{"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1beta1", "credentialprovider.kubelet.k8s.io/v1alpha1"}
)

// A providerConfig is kubelet's CredentialProviderConfig.
type providerConfig struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Providers  []provider `json:"providers"`
}

// A provider is a plugin as kubelet's file describes it.
type provider struct {
	Name                 string           `json:"name"`
	MatchImages          []string         `json:"matchImages"`
	DefaultCacheDuration *duration        `json:"defaultCacheDuration"`
	APIVersion           string           `json:"apiVersion"`
	Args                 []string         `json:"args"`
	Env                  []envVar         `json:"env"`
	TokenAttributes      *tokenAttributes `json:"tokenAttributes"`
}

type envVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// tokenAttributes says that a plugin wants a token of the pod's service account,
// which only kubelet can get.
type tokenAttributes struct {
	RequireServiceAccount bool `json:"requireServiceAccount"`
}

// A duration is a time.Duration as Kubernetes writes it: "12h0m0s".
type duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = duration(v)
	return err
}

// readProviders reads kubelet's file, or all such files of a folder in the order
// of their names.
func readProviders(path string) ([]provider, error) {
	files := []string{path}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		files = nil
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".json" || ext == ".yaml" || ext == ".yml") {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	var all []provider
	for _, file := range files {
		text, err := readFile(file)
		if err != nil {
			return nil, err
		}
		list, err := parseProviders(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, p := range list {
			if slices.ContainsFunc(all, func(have provider) bool { return have.Name == p.Name }) {
				return nil, fmt.Errorf("%s: provider %.100q is there twice", file, p.Name)
			}
			all = append(all, p)
		}
	}
	return all, nil
}

func readFile(name string) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxProviderConfig {
		return nil, fmt.Errorf("%s has %d bytes, over %d", name, st.Size(), maxProviderConfig)
	}
	return os.ReadFile(name)
}

// parseProviders parses and checks a CredentialProviderConfig.
func parseProviders(text []byte) ([]provider, error) {
	var c providerConfig
	if err := yaml.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	if c.Kind != "CredentialProviderConfig" || !slices.Contains(configVersions, c.APIVersion) {
		return nil, fmt.Errorf("it is %.100q of %.100q, not a CredentialProviderConfig of kubelet.config.k8s.io/v1", c.Kind, c.APIVersion)
	}
	for i := range c.Providers {
		if err := c.Providers[i].check(); err != nil {
			return nil, fmt.Errorf("provider %.100q: %w", c.Providers[i].Name, err)
		}
	}
	return c.Providers, nil
}

func (p *provider) check() error {
	switch {
	case p.Name == "", p.Name == ".", p.Name == "..", strings.ContainsAny(p.Name, "/ \t\n"):
		return errors.New("its name is not that of a file")
	case !slices.Contains(pluginVersions, p.APIVersion):
		return fmt.Errorf("apiVersion %.100q is not known", p.APIVersion)
	case len(p.MatchImages) == 0:
		return errors.New("it has no matchImages")
	case p.DefaultCacheDuration == nil || *p.DefaultCacheDuration < 0:
		return errors.New("it has no defaultCacheDuration, or a negative one")
	}
	for _, pattern := range p.MatchImages {
		if _, err := parsePattern(pattern); err != nil {
			return err
		}
	}
	return nil
}
