package snapshotter

import (
	"fmt"
	"path"
	"strings"
)

// A Mode says what is done with an image.
type Mode string

// The modes.
const (
	LazyOrPull Mode = "lazy-or-pull" // serve it lazily; pull it if that is impossible
	LazyOrFail Mode = "lazy-or-fail" // serve it lazily; else the pull fails
	Pull       Mode = "pull"         // let containerd pull it
)

// A Policy says how images of some repositories are served.
type Policy struct {
	// Pattern says which images, by the name of their repository: a whole name, one
	// with the wildcards of path.Match, or one that ends in "/**", for all below.
	// "**" is for all images, as is none.
	Pattern string

	// Mode is LazyOrPull by default.
	Mode Mode

	// Require leaves layers that have no index without one. Otherwise the index is
	// made, for which all of the layer is read.
	Require bool
}

// ParsePolicy reads a policy as it stands in a configuration file:
// "PATTERN MODE", or "PATTERN MODE require-index".
func ParsePolicy(s string) (Policy, error) {
	fields := strings.Fields(s)
	if len(fields) < 2 || len(fields) > 3 {
		return Policy{}, fmt.Errorf("policy %q is not PATTERN MODE, or PATTERN MODE require-index", s)
	}
	p := Policy{Pattern: fields[0], Mode: Mode(fields[1])}
	if len(fields) == 3 {
		if fields[2] != "require-index" {
			return Policy{}, fmt.Errorf("policy %q: the third word is require-index, not %q", s, fields[2])
		}
		p.Require = true
	}
	return p, p.check()
}

// check returns what is wrong with the policy.
func (p Policy) check() error {
	if _, err := path.Match(strings.TrimSuffix(p.Pattern, "/**"), ""); err != nil {
		return fmt.Errorf("pattern %q of a policy: %w", p.Pattern, err)
	}
	switch p.Mode {
	case "", LazyOrPull, LazyOrFail, Pull:
		return nil
	}
	return fmt.Errorf("policy for %q is %s, %s or %s, not %q", p.Pattern, LazyOrPull, LazyOrFail, Pull, p.Mode)
}

// matches reports whether the policy is for a repository.
func (p Policy) matches(repository string) bool {
	if p.Pattern == "" || p.Pattern == "**" {
		return true
	}
	if below, ok := strings.CutSuffix(p.Pattern, "/**"); ok {
		// The pattern has as many elements as the part of the name that it is for.
		n := strings.Count(below, "/") + 1
		elems := strings.Split(repository, "/")
		if len(elems) <= n {
			return false
		}
		ok, _ := path.Match(below, strings.Join(elems[:n], "/"))
		return ok
	}
	ok, _ := path.Match(p.Pattern, repository)
	return ok
}

// policyFor returns the first policy for a repository.
func policyFor(list []Policy, repository string) Policy {
	for _, p := range list {
		if p.matches(repository) {
			if p.Mode == "" {
				p.Mode = LazyOrPull
			}
			return p
		}
	}
	return Policy{Mode: LazyOrPull}
}
