package doctor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// A Level says how bad a finding is.
type Level string

const (
	OK   Level = "ok"
	Warn Level = "warn" // it works, but not as well as it could
	Fail Level = "fail" // it does not work
)

// A Finding is what a check has found.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // what to do about it; empty if it is ok
}

// A Config says what to look at. Fields that are empty leave out the checks that
// need them, but for those that have a default.
type Config struct {
	Release     string // of the kernel; default: the running one's
	FUSE        string // default: /dev/fuse
	Filesystems string // default: /proc/filesystems

	State       string // the node's state folder
	StoreLimit  int64  // bytes; 0 if it is not set
	KeyFile     string // of the cluster's key
	CheckKey    func(file string) error
	Descriptors uint64 // that a process may have; default: this one's limit

	Containerd  string // containerd's socket
	Snapshotter string // the node's socket for it
	ImageProxy  string // the node's socket for kubelet

	Registries []string // to be reached
	Images     []string // to be resolved
	Registry   Registry

	Node  Node   // the running node; nil if none runs
	Peers []Peer // that it knows, or has contacts of

	// Patience bounds each check. Default: 10 s.
	Patience time.Duration
}

// A Registry reaches registries as the node does.
type Registry interface {
	// Ping asks each host of a registry, mirrors first, whether it is there.
	Ping(ctx context.Context, registry string) ([]Reply, error)
	// Resolve asks what an image is, with the node's credentials.
	Resolve(ctx context.Context, image string) error
}

// A Reply is what a host of a registry has answered.
type Reply struct {
	Host string
	Own  bool      // the registry itself, not a mirror
	Date time.Time // of the host's clock; zero if it did not say
	Sent time.Time // of this machine's clock, when the answer came
	Err  error
}

// A Node is what a running node says of itself.
type Node struct {
	Running bool
	PID     int
	Program string // the file that this program is in
}

// A Peer is another node.
type Peer struct {
	Name    string
	Addr    string // host:port
	State   string // as the node sees it; empty if it has not asked it
	Corrupt int64  // chunks of it that were wrong
}

// A check has a name and is made by a function.
type check struct {
	name string
	run  func(context.Context, *Config) []Finding
}

// checks are all checks, in the order of their findings.
var checks = []check{
	{"root", checkRoot},
	{"kernel", checkKernel},
	{"fuse", checkFUSE},
	{"overlay", checkOverlay},
	{"descriptors", checkDescriptors},
	{"disk", checkDisk},
	{"key", checkKeyFile},
	{"node", checkNode},
	{"peers", checkPeers},
	{"containerd", checkContainerd},
	{"kubelet", checkImageProxy},
	{"registry", checkRegistries},
	{"image", checkImages},
}

// Examine makes all checks.
func Examine(ctx context.Context, cfg Config) []Finding {
	cfg.FUSE = cmp.Or(cfg.FUSE, "/dev/fuse")
	cfg.Filesystems = cmp.Or(cfg.Filesystems, "/proc/filesystems")
	cfg.Patience = cmp.Or(cfg.Patience, 10*time.Second)
	found := make([][]Finding, len(checks))
	var g errgroup.Group
	for i, c := range checks {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, cfg.Patience)
			defer cancel()
			found[i] = c.run(ctx, &cfg)
			for j := range found[i] {
				found[i][j].Check = c.name
			}
			return nil
		})
	}
	_ = g.Wait() // no check returns an error
	var all []Finding
	for _, list := range found {
		all = append(all, list...)
	}
	return all
}

// ok, warn and fail make findings.
func ok(format string, args ...any) Finding {
	return Finding{Level: OK, Found: fmt.Sprintf(format, args...)}
}

func warn(do, format string, args ...any) Finding {
	return Finding{Level: Warn, Found: fmt.Sprintf(format, args...), Do: do}
}

func fail(do, format string, args ...any) Finding {
	return Finding{Level: Fail, Found: fmt.Sprintf(format, args...), Do: do}
}
