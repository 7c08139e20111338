package credential

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// A pattern says for which images a plugin, or a credential of its answer, is
// good: "*.registry.example:5000/team". It means what it means to kubelet: the
// host's labels match one by one, ports must be the same, and the path is a
// prefix.
type pattern struct {
	labels []string
	port   string
	path   string
}

// parsePattern parses what stands in matchImages.
func parsePattern(s string) (pattern, error) {
	if i := strings.Index(s, "://"); i >= 0 {
		s = s[i+3:]
	}
	u, err := url.Parse("https://" + s)
	if err != nil || u.Host == "" {
		return pattern{}, fmt.Errorf("%.200q is not a pattern of images", s)
	}
	p := pattern{labels: strings.Split(u.Hostname(), "."), port: u.Port(), path: u.Path}
	for _, label := range p.labels {
		if _, err := path.Match(label, ""); err != nil {
			return pattern{}, fmt.Errorf("%.200q is not a pattern of images: %w", s, err)
		}
	}
	return p, nil
}

// matches reports whether the pattern is good for an image, "host:port/path".
func (p pattern) matches(image string) bool {
	u, err := url.Parse("https://" + image)
	if err != nil || u.Port() != p.port || !strings.HasPrefix(u.Path, p.path) {
		return false
	}
	labels := strings.Split(u.Hostname(), ".")
	if len(labels) != len(p.labels) {
		return false
	}
	for i, label := range labels {
		if ok, err := path.Match(p.labels[i], label); err != nil || !ok {
			return false
		}
	}
	return true
}

// matchesAny reports whether one of several patterns is good for an image.
func matchesAny(patterns []string, image string) bool {
	for _, s := range patterns {
		if p, err := parsePattern(s); err == nil && p.matches(image) {
			return true
		}
	}
	return false
}
