package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/BurntSushi/toml"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/cri"
	"graze/node"
	"graze/origin"
)

// A nodeFile is the configuration file of 'graze node'. The comments are those
// that --print-config prints.
type nodeFile struct {
	State        string   `toml:"state" doc:"folder that everything is kept in"`
	StoreLimit   fileSize `toml:"store-limit" doc:"most bytes of chunks to keep; \"\": 80 % of the space that is free at first"`
	Metadata     fileSize `toml:"metadata-limit" doc:"most bytes of manifests, indexes and views to keep of images that are not in use; \"\": a tenth of store-limit, and 64 MiB at least"`
	ReadDeadline duration `toml:"read-deadline" doc:"how long a read waits before it fails"`
	KeepMounts   string   `toml:"keep-mounts" doc:"who holds the mounts while the node is away, so that their users wait for its return: \"keeper\" (a process), \"systemd\" (its descriptor store), \"nobody\" (mounts end with the node) or \"auto\" (systemd if it says that it has one, nobody as the first process of a container, else keeper)"`
	Verbose      bool     `toml:"verbose" doc:"say more on standard error"`

	Registry   registryFile   `toml:"registry" doc:"how registries are reached"`
	CRI        criFile        `toml:"cri" doc:"kubelet's image service, which goes on to containerd.address; without socket the node does not serve it"`
	Metrics    metricsFile    `toml:"metrics" doc:"what the node tells of itself by HTTP: /metrics for Prometheus, /healthz, /readyz"`
	Containerd containerdFile `toml:"containerd" doc:"the node as a snapshotter of containerd; without socket it is none"`
	Cluster    clusterFile    `toml:"cluster" doc:"the node's place in a cluster; without key-file it works alone"`
	Drill      drillFile      `toml:"drill" doc:"what a scenario of 'graze chaos' turns off, to show what it is for; nothing on a machine that matters"`
}

type registryFile struct {
	PlainHTTP     bool     `toml:"plain-http" doc:"speak plain HTTP to all registries (loopback addresses always do)"`
	PlainHosts    []string `toml:"plain-http-hosts" doc:"speak plain HTTP to these, such as \"registry:5000\""`
	HostsDir      string   `toml:"hosts-dir" doc:"folder of hosts.toml files, as containerd's certs.d"`
	DockerConfig  string   `toml:"docker-config" doc:"folder of Docker's config.json, for credentials; \"\": $DOCKER_CONFIG or ~/.docker"`
	ProviderConf  string   `toml:"credential-provider-config" doc:"kubelet's image-credential-provider-config: plugins that are asked after Docker's config.json"`
	ProviderBin   string   `toml:"credential-provider-bin-dir" doc:"kubelet's image-credential-provider-bin-dir: the folder of those plugins"`
	Platform      string   `toml:"platform" doc:"platform of multi-platform images, such as \"linux/arm64\"; \"\": this machine's"`
	Stale         string   `toml:"stale" doc:"while the registry does not answer, a tag stands for what it stood for last: \"allow\", or \"deny\" and fail"`
	StaleMaxAge   duration `toml:"stale-max-age" doc:"oldest answer of the registry that is used so; \"0s\": of any age"`
	UnverifiedTOC string   `toml:"unverified-toc" doc:"layers whose table of contents the manifest does not vouch for: \"refuse\" or \"accept\""`
}

// A criFile says how the node stands between kubelet and containerd.
type criFile struct {
	Socket     string   `toml:"socket" doc:"socket for kubelet's image-service-endpoint, such as \"/run/graze/cri.sock\""`
	VerdictAge duration `toml:"verdict-age" doc:"how long a registry's yes to a user counts for further pulls from the same repository"`
	Outage     string   `toml:"outage" doc:"pulls of images that are here, or in the cluster, while the registry can't be asked: \"allow-cached\" (users to whom it said yes before), \"deny\" or \"allow\""`
}

type metricsFile struct {
	Listen  string `toml:"listen" doc:"host:port, such as \"127.0.0.1:7948\"; whoever reaches it can read; \"\": nowhere"`
	Profile bool   `toml:"profile" doc:"give Go's profiles, too, at /debug/pprof/"`
}

type containerdFile struct {
	Socket     string   `toml:"socket" doc:"socket on which containerd finds the snapshotter, such as \"/run/graze/containerd.sock\""`
	Root       string   `toml:"root" doc:"folder of the snapshots, with the containers' writable layers; \"\": containerd in the state folder"`
	Address    string   `toml:"address" doc:"containerd's own socket: calls of kubelet's image service go on to it, and the images of clients that don't name them are looked for there; \"\": none"`
	Policies   []string `toml:"policies" doc:"how images are served, \"PATTERN MODE [require-index]\", the first that matches: lazy-or-pull (also where none matches), lazy-or-fail or pull"`
	SmallImage fileSize `toml:"small-image" doc:"images below this size are pulled; \"\": none"`
}

type drillFile struct {
	Off []string `toml:"off" doc:"any of \"uncached-reads\" (on a full disk), \"eviction\" (of chunks, for room), \"ageless-certificates\" (between nodes) and \"retry-after\" (registries' wish for a pause)"`
}

type clusterFile struct {
	KeyFile      string   `toml:"key-file" doc:"file of the cluster's key, which 'graze key new' makes"`
	IdentityFile string   `toml:"identity-file" doc:"file of the node's own key, made if missing; \"\": identity.key in the state folder"`
	Name         string   `toml:"name" doc:"what people call the node; \"\": the host's name"`
	Listen       string   `toml:"listen" doc:"ip:port at which chunks are served"`
	Gossip       string   `toml:"gossip" doc:"ip:port of the membership, TCP and UDP"`
	P2P          string   `toml:"p2p" doc:"ip:port of libp2p"`
	Advertise    string   `toml:"advertise" doc:"address without port by which others reach the node; \"\": that of listen, or the machine's first"`
	Join         []string `toml:"join" doc:"first contacts: \"host:port\" or a name with several addresses"`
	JoinFile     string   `toml:"join-file" doc:"file with more contacts, one a line"`
	Bootstrap    []string `toml:"bootstrap" doc:"nodes of other pools with the same key, \"host:port\" of their p2p or multiaddrs: holders of images are found there, too"`
	Outside      bool     `toml:"outside" doc:"find holders of images outside the pool, and be found; bootstrap sets it"`
	Rack         string   `toml:"rack" doc:"rack of the node; chunks are looked for there first"`
	Zone         string   `toml:"zone" doc:"zone of the node"`
	Seed         bool     `toml:"seed" doc:"hold whole images for the rack"`
	Weight       uint16   `toml:"weight" doc:"share of chunks relative to other nodes; 0: 100, and 400 for a seed"`
	MemberIndex  bool     `toml:"member-indexes" doc:"have one node make the index of a layer that has none, for all; false: each makes its own"`
	TagFreshness duration `toml:"tag-freshness" doc:"how long all nodes use what a registry has said of a tag, or of an image's indexes; negative: each asks each time"`
	Copies       int      `toml:"copies" doc:"how many nodes are to hold each part of an image that is mounted anywhere, so that it outlasts its registry; 0: only what is read is kept"`
	Completion   fileSize `toml:"completion-rate" doc:"most bytes a second that a node fetches for that; \"\": no bound"`
	Quarantine   duration `toml:"quarantine" doc:"how long a node is asked for nothing after it has sent wrong bytes"`
	Encrypt      bool     `toml:"encrypt" doc:"encrypt chunks between nodes; all nodes must agree on it"`
	UploadRate   fileSize `toml:"upload-rate" doc:"most bytes a second that others fetch from the node; \"\": no bound"`
	RegistryRate fileSize `toml:"registry-rate" doc:"most bytes a second that the whole cluster asks of registries; \"\": no bound"`
	RegistryReqs float64  `toml:"registry-requests" doc:"most requests a second likewise; 0: no bound"`
}

// defaultSmallImage is the size of images, in bytes, below which a pull is as fast as
// a mount: see BenchmarkSmallImage.
const defaultSmallImage = 2 << 20

// defaultNodeFile returns the settings where the file has none.
func defaultNodeFile() nodeFile {
	return nodeFile{
		State:        defaultState,
		ReadDeadline: duration(5 * time.Minute),
		KeepMounts:   keepAuto,
		Registry:     registryFile{PlainHosts: []string{}, Stale: "allow", UnverifiedTOC: "refuse"},
		CRI: criFile{
			VerdictAge: duration(5 * time.Minute),
			Outage:     cri.AllowCached.String(),
		},
		Containerd: containerdFile{
			Address:    "/run/containerd/containerd.sock",
			Policies:   []string{},
			SmallImage: fileSize{defaultSmallImage},
		},
		Cluster: clusterFile{
			Listen:  "0.0.0.0:7945",
			Gossip:  "0.0.0.0:7946",
			P2P:     "0.0.0.0:7947",
			Join:    []string{},
			Encrypt: true,

			Bootstrap:    []string{},
			MemberIndex:  true,
			TagFreshness: duration(5 * time.Second),
			Copies:       2,
			Completion:   fileSize{32 << 20},
			Quarantine:   duration(10 * time.Minute),
		},
		Drill: drillFile{Off: []string{}},
	}
}

// A fileSize is a byteSize as it stands in a file.
type fileSize struct{ byteSize }

// MarshalText implements encoding.TextMarshaler.
func (f fileSize) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *fileSize) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		f.byteSize = 0
		return nil
	}
	return f.Set(string(text))
}

// A duration is a time.Duration as it stands in a file: "5m0s".
type duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = duration(v)
	return err
}

// readNodeFile reads a configuration file. A key that is not known is an error,
// so that a typing mistake does not pass for a default.
func readNodeFile(name string) (nodeFile, error) {
	f := defaultNodeFile()
	if name == "" {
		return f, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return f, err
	}
	meta, err := toml.Decode(string(text), &f)
	if err != nil {
		return f, fmt.Errorf("%s: %w", name, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return f, fmt.Errorf("%s: unknown setting %s; 'graze node --print-config' lists all", name, unknown[0])
	}
	return f, nil
}

// orNone returns n, or -1 for 0: where a file says none, package node has a
// default for zero.
func orNone[T int | int64](n T) T {
	if n == 0 {
		return -1
	}
	return n
}

// nodeConfig returns the settings in the form that package node has.
func (f *nodeFile) nodeConfig(o *options) (node.Config, error) {
	o.verbose = o.verbose || f.Verbose
	cfg := node.Config{
		State:               f.State,
		StoreLimit:          int64(f.StoreLimit.byteSize),
		MetadataLimit:       int64(f.Metadata.byteSize),
		ReadDeadline:        time.Duration(f.ReadDeadline),
		Stale:               node.StalePolicy{Deny: f.Registry.Stale == "deny", MaxAge: time.Duration(f.Registry.StaleMaxAge)},
		AcceptUnverifiedTOC: f.Registry.UnverifiedTOC == "accept",
		Monitor:             node.MonitorConfig{Listen: f.Metrics.Listen, Profile: f.Metrics.Profile},
		Log:                 o.logger(),
	}
	var err error
	if cfg.Drill, err = node.ParseDrill(f.Drill.Off); err != nil {
		return cfg, fmt.Errorf("drill.off: %w", err)
	}
	if cfg.Hold, err = holder(f.KeepMounts, f.State, cfg.Log); err != nil {
		return cfg, err
	}
	if n := f.Cluster.Copies; n < 0 || n > 8 {
		return cfg, fmt.Errorf("cluster.copies is from 0 to 8, not %d", n)
	}
	if p := f.Registry.Stale; p != "allow" && p != "deny" {
		return cfg, fmt.Errorf("registry.stale is allow or deny, not %q", p)
	}
	if u := f.Registry.UnverifiedTOC; u != "accept" && u != "refuse" {
		return cfg, fmt.Errorf("registry.unverified-toc is refuse or accept, not %q", u)
	}
	if err := checkHostsDir(f.Registry.HostsDir); err != nil {
		return cfg, fmt.Errorf("registry.hosts-dir: %w", err)
	}
	cfg.Origin = origin.Config{
		PlainHTTP:      f.Registry.PlainHTTP,
		PlainHTTPHosts: f.Registry.PlainHosts,
		HostsDir:       f.Registry.HostsDir,
		UserAgent:      "graze/" + version(),
	}
	if err := f.setCredentials(&cfg); err != nil {
		return cfg, err
	}
	if p := f.Registry.Platform; p != "" {
		platform, err := v1.ParsePlatform(p)
		if err != nil {
			return cfg, fmt.Errorf("registry.platform: %w", err)
		}
		cfg.Platform = *platform
	}
	if c := f.Containerd; c.Socket != "" {
		cfg.Containerd = &node.ContainerdConfig{
			Socket: c.Socket, Root: c.Root, Address: c.Address,
			Policies: c.Policies, SmallImage: int64(c.SmallImage.byteSize),
		}
	}
	if c := f.Cluster; c.KeyFile != "" {
		cfg.Cluster = &node.ClusterConfig{
			KeyFile: c.KeyFile, IdentityFile: c.IdentityFile, Name: c.Name,
			Bulk: c.Listen, Gossip: c.Gossip, P2P: c.P2P, Advertise: c.Advertise,
			Join: c.Join, JoinFile: c.JoinFile,
			Bootstrap: c.Bootstrap, Outside: c.Outside,
			Rack: c.Rack, Zone: c.Zone, Seed: c.Seed, Weight: c.Weight,
			OwnIndexes:       !c.MemberIndex,
			TagFreshness:     time.Duration(c.TagFreshness),
			Copies:           orNone(c.Copies),
			CompletionRate:   orNone(int64(c.Completion.byteSize)),
			Quarantine:       time.Duration(c.Quarantine),
			Plain:            !c.Encrypt,
			UploadRate:       int64(c.UploadRate.byteSize),
			RegistryBytes:    int64(c.RegistryRate.byteSize),
			RegistryRequests: c.RegistryReqs,
		}
	}
	return cfg, nil
}

// setCredentials sets the sources of credentials.
func (f *nodeFile) setCredentials(cfg *node.Config) (err error) {
	r := f.Registry
	keys := node.KeychainConfig{DockerConfig: r.DockerConfig, ProviderConfig: r.ProviderConf, ProviderBin: r.ProviderBin}
	if cfg.Origin.Keychain, err = keys.Keychain(cfg); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	outage, err := cri.ParseOutage(f.CRI.Outage)
	if err != nil {
		return fmt.Errorf("cri.outage: %w", err)
	}
	if f.CRI.Socket != "" {
		if f.Containerd.Address == "" {
			return errors.New("cri.socket needs containerd.address, which calls go on to")
		}
		cfg.CRI = &cri.Config{
			Socket: f.CRI.Socket, Containerd: f.Containerd.Address,
			VerdictAge: time.Duration(f.CRI.VerdictAge), Outage: outage,
		}
	}
	return nil
}
