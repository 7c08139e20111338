package graze

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport says which of our packages each package may import. Siblings don't
// import siblings: they meet through small interfaces that their user declares,
// and are joined in node.
var mayImport = map[string][]string{
	"chunk":                     {},
	"image":                     {"chunk"},
	"image/fixture":             {},
	"image/inflate":             {},
	"image/inflate/inflatetest": {},
	"image/codec":               {"chunk", "image/inflate"},
	"image/toc":                 {"chunk", "image"},
	"image/estargz":             {"chunk", "image", "image/toc"},
	"image/zstdchunked":         {"chunk", "image", "image/toc"},
	"image/soci":                {"chunk", "image"},
	"image/soci/socitest":       {"image/imagetest", "image/inflate"},
	"image/targz":               {"chunk", "image", "image/codec", "image/inflate"},
	"image/rafs":                {"chunk", "image"},
	"image/rafs/rafstest":       {"image/imagetest", "image/inflate"},
	"image/imagetest":           {"chunk", "image", "image/codec"},
	"origin":                    {"chunk"},
	"origin/credential":         {"chunk", "origin"},
	"cri":                       {"chunk"},
	"setup":                     {},
	"materialize":               {},
	"doctor":                    {},
	"chunkstore":                {"chunk"},
	"chunkstore/storetest":      {"chunk"},
	"scheduler":                 {"chunk", "latency"},
	"dht":                       {"chunk"},
	"fusefs":                    {"chunk", "image", "latency"},
	"wire":                      {"chunk", "wire/wirepb"},
	"wire/wirepb":               {},
	"peer":                      {"chunk", "wire"},
	"directory":                 {"chunk"},
	"chaos":                     {},
	"chaos/disk":                {},
	"chaos/lab":                 {},
	"chaos/liar":                {"chunk", "dht", "peer", "wire"},
	"chaos/scenario":            {"chaos", "chaos/disk", "chaos/lab", "node", "registry"},
	"chaos/sim":                 {"chunk", "directory", "scheduler"},
	"keeper":                    {},
	"latency":                   {},
	"registry":                  {},
	"snapshotter":               {"chunk"},
	"node": {
		"chunk", "image", "image/codec", "image/estargz", "image/rafs", "image/targz", "image/toc", "image/zstdchunked", "image/soci",
		"origin", "origin/credential", "cri", "chunkstore", "scheduler", "fusefs", "peer", "wire", "dht", "directory", "seed", "copies", "snapshotter", "latency", "node/adminpb",
	},
	"node/adminpb": {},
	"seed":         {"chunk"},
	"cmd/graze":    {"chaos", "chaos/disk", "chaos/liar", "chaos/scenario", "chunk", "copies", "cri", "doctor", "image", "keeper", "materialize", "node", "origin", "registry", "setup"},
	"copies":       {"chunk"},

	"cmd/graze/testdata/probe": {},
	"scripts/ztoc":             {},
}

// stdlibOnly lists packages that may import nothing from outside the standard
// library but what stands here.
var stdlibOnly = map[string][]string{
	"chunk": {"github.com/zeebo/blake3"},
	"image": {"golang.org/x/sys/unix"},
}

// onlyIn says which modules are used by one package alone.
var onlyIn = map[string]string{
	"github.com/prometheus/": "node",
}

// goFiles calls f for every Go file of the repository that is not a test.
func goFiles(t *testing.T, f func(name string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") {
			f(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestImports(t *testing.T) {
	goFiles(t, func(name string) {
		dir := path.Dir(name)
		if dir == "." {
			return
		}
		may, ok := mayImport[dir]
		if !ok {
			t.Errorf("%s is in no row of the import table", dir)
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if dep, ours := strings.CutPrefix(imp, "graze/"); ours {
				if !slices.Contains(may, dep) {
					t.Errorf("%s must not import %s", name, imp)
				}
				continue
			}
			for module, only := range onlyIn {
				if strings.HasPrefix(imp, module) && dir != only {
					t.Errorf("%s must not import %s: only %s does", name, imp, only)
				}
			}
			if third, limited := stdlibOnly[dir]; limited && strings.Contains(imp, ".") && !slices.Contains(third, imp) {
				t.Errorf("%s must not import %s: %s keeps to the standard library", name, imp, dir)
			}
		}
	})
}

// TestFormatsStartNothing keeps image and the formats free of goroutines: 'make test'
// runs their tests without the race detector.
func TestFormatsStartNothing(t *testing.T) {
	goFiles(t, func(name string) {
		if !strings.HasPrefix(name, "image/") || strings.HasPrefix(name, "image/imagetest/") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			starts := false
			switch n := n.(type) {
			case *ast.GoStmt:
				starts = true
			case *ast.SelectorExpr: // of a sync.WaitGroup, or an errgroup
				starts = n.Sel.Name == "Go"
			}
			if starts {
				t.Errorf("%s starts a goroutine", files.Position(n.Pos()))
			}
			return true
		})
	})
}
