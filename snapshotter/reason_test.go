package snapshotter

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

// TestReasonsAreAll compares Reasons with the constants in the source.
func TestReasonsAreAll(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []Reason
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, Reason(text))
		}
		return false
	})
	if got := Reasons(); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("Reasons are %q, the constants %q", got, want)
	}
}
