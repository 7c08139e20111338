package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func checkRoot(context.Context, *Config) []Finding {
	if id := os.Geteuid(); id != 0 {
		return []Finding{fail("run it as root, as the node", "user %d can neither mount nor look everywhere", id)}
	}
	return []Finding{ok("runs as root")}
}

// checkKernel looks at the kernel's version: what depends on it is named in each
// finding.
func checkKernel(_ context.Context, cfg *Config) []Finding {
	release := cfg.Release
	if release == "" {
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return []Finding{warn("", "the kernel does not tell its version: %v", err)}
		}
		release = unix.ByteSliceToString(u.Release[:])
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return []Finding{warn("", "kernel %q has no version that can be read", release)}
	}
	older := func(x, y int) bool { return major < x || major == x && minor < y }
	switch {
	case older(5, 4):
		return []Finding{fail("use Linux 5.4 or later", "kernel %s is too old: overlayfs and FUSE together are not dependable before 5.4", release)}
	case older(6, 9):
		return []Finding{warn("Linux 6.9 or later sends them again", "kernel %s: reads that are under way when the node is killed fail or hang", release)}
	case older(6, 12):
		return []Finding{warn("Linux 6.12 or later does, if pods with user namespaces are used", "kernel %s does not map owners of FUSE mounts: such containers are given a copy", release)}
	}
	return []Finding{ok("kernel %s", release)}
}

func checkFUSE(_ context.Context, cfg *Config) []Finding {
	f, err := os.OpenFile(cfg.FUSE, os.O_RDWR, 0)
	if err != nil {
		return []Finding{fail("modprobe fuse; in a container: --device /dev/fuse", "%s can't be opened: %v", cfg.FUSE, err)}
	}
	f.Close()
	return []Finding{ok("%s can be opened", cfg.FUSE)}
}

// checkOverlay lays something over a FUSE mount, as a container's root is.
func checkOverlay(_ context.Context, cfg *Config) []Finding {
	list, err := os.ReadFile(cfg.Filesystems)
	if err != nil || !strings.Contains(string(list), "\toverlay\n") {
		return []Finding{fail("modprobe overlay", "the kernel has no overlayfs")}
	}
	if err := tryOverlay(); err != nil {
		return []Finding{fail("look into dmesg; in a container: --cap-add SYS_ADMIN --device /dev/fuse --security-opt apparmor:unconfined",
			"overlayfs on FUSE does not work: %v", err)}
	}
	return []Finding{ok("overlayfs works on FUSE")}
}

// tryOverlay mounts a file by FUSE and reads it through an overlay.
func tryOverlay() (err error) {
	dir, err := os.MkdirTemp("", "graze-doctor-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	lower, other, merged := filepath.Join(dir, "fuse"), filepath.Join(dir, "other"), filepath.Join(dir, "merged")
	for _, d := range []string{lower, other, merged} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	root := &fs.Inode{}
	opts := &fs.Options{MountOptions: fuse.MountOptions{FsName: "graze-doctor", DirectMountStrict: true}}
	opts.OnAdd = func(ctx context.Context) {
		file := root.NewPersistentInode(ctx, &fs.MemRegularFile{Data: []byte("here")}, fs.StableAttr{})
		root.AddChild("file", file, false)
	}
	server, err := fs.Mount(lower, root, opts)
	if err != nil {
		return fmt.Errorf("mount FUSE: %w", err)
	}
	defer server.Unmount()
	// Without an upper folder it does not matter which file system dir is on.
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_RDONLY, "lowerdir="+lower+":"+other); err != nil {
		return fmt.Errorf("mount overlayfs: %w", err)
	}
	defer unix.Unmount(merged, unix.MNT_DETACH)
	p, err := os.ReadFile(filepath.Join(merged, "file"))
	if err == nil && string(p) != "here" {
		err = fmt.Errorf("a file reads %q", p)
	}
	return err
}
