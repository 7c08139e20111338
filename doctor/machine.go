package doctor

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what is taken to be in order.
const (
	leastFree       = 2 << 30 // bytes of the state folder's file system
	leastFiles      = 1024    // descriptors that the node can't do without
	enoughFiles     = 16384   // and those for hundreds of mounts and peers
	oldKey          = 2 * 365 * 24 * time.Hour
	suspiciousSkew  = 30 * time.Second
	intolerableSkew = 5 * time.Minute
)

// checkDescriptors looks at how many descriptors the node may open.
func checkDescriptors(_ context.Context, cfg *Config) []Finding {
	limit, whose := cfg.Descriptors, "a process"
	if limit == 0 && cfg.Node.Running {
		limit, whose = limitOf(cfg.Node.PID), "the node"
	}
	if limit == 0 {
		var r unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
			return []Finding{warn("", "the limit of descriptors is not known: %v", err)}
		}
		limit = r.Max
	}
	do := "set LimitNOFILE in the node's unit, or ulimit -n, to 65536 or more"
	switch {
	case limit < leastFiles:
		return []Finding{fail(do, "%s can open %d descriptors; chunks, mounts and peers need more", whose, limit)}
	case limit < enoughFiles:
		return []Finding{warn(do, "%s can open %d descriptors, which is little for many images and peers", whose, limit)}
	}
	return []Finding{ok("%s can open %d descriptors", whose, limit)}
}

// limitOf returns how many descriptors a process can open, 0 if that is not known.
func limitOf(pid int) uint64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, found := strings.CutPrefix(s.Text(), "Max open files"); found {
			n, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

// The numbers of file systems that can't or should not hold the state folder.
var unfitFilesystems = map[int64]string{
	unix.NFS_SUPER_MAGIC:  "NFS",
	unix.SMB2_SUPER_MAGIC: "SMB",
	unix.FUSE_SUPER_MAGIC: "FUSE",
}

// checkDisk looks at where the state folder is, or will be.
func checkDisk(_ context.Context, cfg *Config) []Finding {
	if cfg.State == "" {
		return nil
	}
	dir := cfg.State
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return []Finding{fail("name another folder as state", "%s: %v", dir, err)}
	}
	free, all := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	var list []Finding
	if name, unfit := unfitFilesystems[int64(st.Type)]; unfit {
		list = append(list, fail("put the state folder on a local disk", "%s is on %s, which is neither fast nor safe enough", cfg.State, name))
	}
	if int64(st.Type) == unix.TMPFS_MAGIC {
		list = append(list, warn("put the state folder on a disk", "%s is in memory: all is fetched again after a restart of the machine", cfg.State))
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		list = append(list, fail("name another folder as state", "%s is on a file system that is read-only", cfg.State))
	}
	if cfg.StoreLimit > all {
		list = append(list, warn("set store-limit below that", "store-limit is %d GB, and the file system of %s has %d GB", cfg.StoreLimit>>30, cfg.State, all>>30))
	}
	if free < leastFree && cfg.StoreLimit == 0 {
		list = append(list, warn("make room, or set a lower store-limit", "%s has %d MB left: little is kept, much is fetched again", cfg.State, free>>20))
	}
	if len(list) == 0 {
		list = append(list, ok("%s has %d GB left", cfg.State, free>>30))
	}
	return list
}

// checkKeyFile looks at the cluster's key.
func checkKeyFile(_ context.Context, cfg *Config) []Finding {
	if cfg.KeyFile == "" {
		return []Finding{ok("no cluster: the node works alone")}
	}
	st, err := os.Stat(cfg.KeyFile)
	if err == nil {
		err = cfg.CheckKey(cfg.KeyFile)
	}
	if err != nil {
		return []Finding{fail("'graze key new FILE' makes a key; all nodes need the same one, with mode 0600", "%v", err)}
	}
	if age := time.Since(st.ModTime()); age > oldKey {
		return []Finding{warn("make a new one, and restart node after node with it", "the cluster's key is %d days old", int(age.Hours()/24))}
	}
	return []Finding{ok("the cluster's key in %s is good", cfg.KeyFile)}
}

// checkNode looks whether a node runs, and which.
func checkNode(_ context.Context, cfg *Config) []Finding {
	if !cfg.Node.Running {
		return []Finding{warn("systemctl start graze, or 'graze node'; --state and --config say where it is", "no node runs on %s", cfg.State)}
	}
	running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", cfg.Node.PID))
	if err != nil {
		return []Finding{ok("a node runs as process %d, in another PID namespace", cfg.Node.PID)}
	}
	if own, err := os.Stat(cfg.Node.Program); err == nil && !os.SameFile(own, running) {
		return []Finding{warn("systemctl restart graze, if this is an upgrade", "the node that runs, process %d, is another program than %s", cfg.Node.PID, cfg.Node.Program)}
	}
	return []Finding{ok("the node runs, process %d", cfg.Node.PID)}
}
