// Command probe is what the containers of tests run: it looks at its root file
// system, changes it, and looks again.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
)

// exitCode is what the report ends with, to see that it is passed on.
const exitCode = 7

// stargz are files of the eStargz format itself. They are no part of the image, but
// containerd does not know that.
var stargz = []string{"/stargz.index.json", "/.prefetch.landmark", "/.no.prefetch.landmark"}

func main() {
	what := "report"
	if len(os.Args) > 1 {
		what = os.Args[1]
	}
	var err error
	switch what {
	case "wait":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("waiting")
		<-stop
	case "hello":
		fmt.Println("hello")
	case "read":
		err = list()
	case "use":
		err = use()
	default:
		if err = report(); err == nil {
			os.Exit(exitCode)
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// report lists all files, and lists them again when it has changed some.
func report() error {
	if err := list(); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	fmt.Println("--- changed")
	return list()
}

// change does to files of the image what containers do.
func change() error {
	f, err := os.OpenFile("/etc/motd", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString("more\n"); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for _, err := range []error{
		os.Rename("/etc/other", "/etc/moved"),
		os.Remove("/etc/link"),
		os.Symlink("moved", "/etc/link"),
		os.Chmod("/etc/mode", os.ModeSetuid|0o711),
		os.RemoveAll("/tree"),
		os.MkdirAll("/tree/new", 0o755),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// list prints all files of the root file system, without what is mounted in it.
func list() error {
	var root syscall.Stat_t
	if err := syscall.Lstat("/", &root); err != nil {
		return err
	}
	return filepath.WalkDir("/", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if slices.Contains(stargz, name) {
			return nil
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(name, &st); err != nil {
			return err
		}
		if d.IsDir() {
			if st.Dev != root.Dev {
				return fs.SkipDir
			}
			fmt.Printf("%q %o %d:%d\n", name, st.Mode, st.Uid, st.Gid)
			return nil
		}
		content, err := contentOf(name, d)
		if err != nil {
			return err
		}
		fmt.Printf("%q %o %d:%d %d %d %x %s\n", name, st.Mode, st.Uid, st.Gid, st.Size, st.Blocks, st.Rdev, content)
		return nil
	})
}

// contentOf returns what tells one file's content from another's.
func contentOf(name string, d fs.DirEntry) (string, error) {
	switch d.Type() {
	case fs.ModeSymlink:
		return os.Readlink(name)
	case 0:
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		h := sha256.New()
		_, err = io.Copy(h, f)
		return fmt.Sprintf("%x", h.Sum(nil)), err
	}
	return "", nil
}
