package graze

import (
	"go/parser"
	"go/token"
	"path"
	"testing"
)

// TestPackageComments fails on a package that has no comment, or two.
func TestPackageComments(t *testing.T) {
	comments := make(map[string][]string)
	goFiles(t, func(name string) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		dir := path.Dir(name)
		if comments[dir] == nil {
			comments[dir] = []string{}
		}
		if file.Doc != nil {
			comments[dir] = append(comments[dir], name)
		}
	})
	for dir, files := range comments {
		if len(files) != 1 {
			t.Errorf("package %s has %d package comments, not one: %q", dir, len(files), files)
		}
	}
}
