package scenario

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// builtin has the scenarios that come with graze, in files of their names.
//
//go:embed builtin/*.yaml
var builtin embed.FS

// Builtin returns a scenario that comes with graze.
func Builtin(name string) (*Scenario, error) {
	text, err := builtin.ReadFile("builtin/" + name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("there is no scenario %q, and no file of that name; 'graze chaos list' has the names", name)
	}
	s, err := Parse(text)
	if err == nil && s.Name != name {
		err = fmt.Errorf("it calls itself %q", s.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", name, err)
	}
	return s, nil
}

// Names returns the names of the scenarios that come with graze: outages of the
// registry first.
func Names() []string {
	files, err := fs.Glob(builtin, "builtin/*.yaml")
	if err != nil {
		panic(err) // the pattern is good
	}
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(path.Base(file), ".yaml"))
	}
	slices.SortStableFunc(names, func(a, b string) int { return outageFirst(a) - outageFirst(b) })
	return names
}

// outageFirst orders names.
func outageFirst(name string) int {
	if strings.HasPrefix(name, "outage-") {
		return 0
	}
	return 1
}
