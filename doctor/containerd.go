package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// snapshotter is the name by which containerd knows graze.
const snapshotter = "graze"

const doInstall = "graze install --now"

// checkContainerd asks containerd what it knows of graze, and how it would
// understand its configuration if it were started now.
func checkContainerd(ctx context.Context, cfg *Config) []Finding {
	if cfg.Containerd == "" {
		return nil
	}
	conn, err := grpc.NewClient("unix://"+cfg.Containerd, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return []Finding{fail("name containerd's socket by --containerd", "%v", err)}
	}
	defer conn.Close()
	version, err := versionapi.NewVersionClient(conn).Version(ctx, &emptypb.Empty{})
	if err != nil {
		return []Finding{fail("start containerd, or name its socket by --containerd", "containerd does not answer on %s: %v", cfg.Containerd, err)}
	}
	list := []Finding{ok("containerd %s answers", version.GetVersion())}
	if err := dial(cfg.Snapshotter); err != nil {
		list = append(list, fail("start the node with containerd.socket set; restart containerd after that only if it says so here", "the snapshotter does not answer: %v", err))
	}
	list = append(list, plugins(ctx, conn, cfg)...)
	return append(list, configuration(ctx, cfg)...)
}

// dial connects to a socket.
func dial(socket string) error {
	if socket == "" {
		return errors.New("the node's settings name no socket")
	}
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// plugins looks for graze among the plug-ins that have been loaded.
func plugins(ctx context.Context, conn grpc.ClientConnInterface, cfg *Config) []Finding {
	reply, err := introspectionapi.NewIntrospectionClient(conn).Plugins(ctx, &introspectionapi.PluginsRequest{})
	if err != nil {
		return []Finding{warn("", "containerd does not list its plug-ins: %v", err)}
	}
	for _, p := range reply.GetPlugins() {
		if p.GetType() != "io.containerd.snapshotter.v1" || p.GetID() != snapshotter {
			continue
		}
		if p.GetInitErr() != nil {
			return []Finding{fail("look into containerd's log", "containerd can't use the plug-in %s: %s", snapshotter, p.GetInitErr().GetMessage())}
		}
		if address := p.GetExports()["address"]; address != cfg.Snapshotter {
			return []Finding{fail(doInstall, "containerd looks for %s on %s, but the node listens on %q", snapshotter, address, cfg.Snapshotter)}
		}
		return []Finding{ok("containerd has loaded the plug-in %s", snapshotter)}
	}
	return []Finding{fail(doInstall+"; if that has nothing to do: systemctl restart containerd", "containerd knows no snapshotter %s", snapshotter)}
}

// configuration has the program of the running containerd read its configuration.
func configuration(ctx context.Context, cfg *Config) []Finding {
	p, err := processOf(cfg.Containerd)
	if err != nil {
		return []Finding{warn("run it on the host, in the host's PID namespace", "containerd's configuration can't be looked at: %v", err)}
	}
	dump := exec.CommandContext(ctx, p.program, "--config", p.config, "config", "dump")
	if _, err := os.Stat(p.config); errors.Is(err, os.ErrNotExist) {
		dump = exec.CommandContext(ctx, p.program, "config", "default")
	}
	out, err := dump.Output()
	if err != nil {
		return []Finding{warn("run '"+strings.Join(dump.Args, " ")+"'", "containerd does not read its configuration: %v", err)}
	}
	var list []Finding
	if p.stale() {
		list = append(list, warn("systemctl restart containerd", "%s has changed since containerd was started", p.config))
	}
	list = append(list, judgeConfiguration(out)...)
	if dir := imageDisk(out); dir != "" {
		if _, err := os.Stat(dir); err != nil {
			list = append(list, warn(doInstall, "kubelet has no figures of the disk of images, and never makes room there: it looks at %s: %v", dir, err))
		}
	}
	return list
}

// imageDisk returns the folder whose disk CRI reports as that of images, if they are
// unpacked by graze. containerd 1 can't be told of another one than its own.
func imageDisk(text []byte) string {
	var c struct {
		Root    string
		Plugins map[string]struct {
			Snapshotter string
			Containerd  struct{ Snapshotter string }
		}
		Proxies map[string]struct {
			Exports map[string]string
		} `toml:"proxy_plugins"`
	}
	if err := toml.Unmarshal(text, &c); err != nil {
		return "" // which has been said
	}
	own := filepath.Join(c.Root, "io.containerd.snapshotter.v1."+snapshotter)
	switch {
	case c.Plugins["io.containerd.cri.v1.images"].Snapshotter == snapshotter:
		return cmp.Or(c.Proxies[snapshotter].Exports["root"], own)
	case c.Plugins["io.containerd.grpc.v1.cri"].Containerd.Snapshotter == snapshotter:
		return own
	}
	return ""
}

// judgeConfiguration says what a configuration means for graze.
func judgeConfiguration(text []byte) []Finding {
	var c struct {
		Version int64
		Plugins map[string]map[string]any
		Proxies map[string]struct {
			Exports map[string]string
		} `toml:"proxy_plugins"`
	}
	if err := toml.Unmarshal(text, &c); err != nil {
		return []Finding{warn("", "containerd's configuration can't be read: %v", err)}
	}
	cri, isNew := c.Plugins["io.containerd.cri.v1.images"]
	if !isNew {
		cri, _ = c.Plugins["io.containerd.grpc.v1.cri"]["containerd"].(map[string]any)
	}
	var list []Finding
	if used, _ := cri["snapshotter"].(string); cri != nil && used != snapshotter {
		list = append(list, fail(doInstall, "kubelet's images are unpacked by %q, not %s", used, snapshotter))
	} else if off, _ := cri["disable_snapshot_annotations"].(bool); off {
		list = append(list, fail(doInstall, "disable_snapshot_annotations is on: the snapshotter is not told which image a layer is of, and all is pulled"))
	} else if cri != nil {
		list = append(list, ok("kubelet's images are unpacked by %s, which is told of them", snapshotter))
	}
	if !isNew {
		return list // no transfer service
	}
	unpack, _ := c.Plugins["io.containerd.transfer.v1.local"]["unpack_config"].([]any)
	ours := slices.ContainsFunc(unpack, func(v any) bool {
		m, _ := v.(map[string]any)
		return m["snapshotter"] == snapshotter
	})
	if c.Proxies[snapshotter].Exports["enable_remote_snapshot_annotations"] != "true" || !ours {
		list = append(list, warn(doInstall, "'ctr image pull' and others that use the transfer service pull all: it is not told of %s (unpack_config, enable_remote_snapshot_annotations)", snapshotter))
	}
	return list
}

// A process is the containerd that listens on a socket.
type process struct {
	pid             int
	program, config string
}

// processOf finds the process that listens on a socket.
func processOf(socket string) (process, error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return process{}, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return process{}, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, credErr); err != nil {
		return process{}, err
	}
	p := process{pid: int(cred.Pid), config: "/etc/containerd/config.toml"}
	if p.program, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid)); err != nil {
		return p, err
	}
	if filepath.Base(p.program) != "containerd" {
		return p, fmt.Errorf("process %d, %s, listens on its socket", p.pid, p.program)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	args := strings.Split(string(line), "\x00")
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		if name != "--config" && name != "-config" && name != "-c" {
			continue
		}
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		p.config = value
	}
	return p, err
}

// stale reports whether the configuration is younger than the process.
func (p *process) stale() bool {
	started, err := p.started()
	changed, err2 := os.Stat(p.config)
	return err == nil && err2 == nil && changed.ModTime().After(started)
}

// ticks is how many ticks of the kernel's clock for user space are in a second.
const ticks = 100

// started returns when the process was started, to a second.
func (p *process) started() (time.Time, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return time.Time{}, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return time.Time{}, errors.New("the kernel's answer is too short")
	}
	since, err := strconv.ParseInt(fields[19], 10, 64)
	var now, up unix.Timespec
	err = errors.Join(err, unix.ClockGettime(unix.CLOCK_REALTIME, &now), unix.ClockGettime(unix.CLOCK_BOOTTIME, &up))
	boot := time.Unix(now.Unix()).Add(-time.Duration(up.Nano()))
	return boot.Add(time.Duration(since) * time.Second / ticks), err
}

// checkImageProxy looks whether kubelet's calls can go through the node.
func checkImageProxy(_ context.Context, cfg *Config) []Finding {
	if cfg.ImageProxy == "" {
		return nil
	}
	if err := dial(cfg.ImageProxy); err != nil {
		return []Finding{fail("start the node; until then kubelet can't pull, if its imageServiceEndpoint is this socket", "the image service for kubelet does not answer: %v", err)}
	}
	return []Finding{ok("the image service for kubelet answers on %s", cfg.ImageProxy)}
}
