package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/cri"
	"graze/origin"
)

// A Config says where a node keeps its state and how it reaches registries. Only
// State is required.
type Config struct {
	// State is the folder that everything is kept in; it is made if missing.
	State string

	// StoreLimit bounds the chunk store in bytes. 0 means 80 % of the space that
	// was free when the store was first opened.
	StoreLimit int64

	// MetadataLimit bounds what is kept of images besides their chunks, in bytes:
	// manifests, configs, indexes and views. What images in use need is kept all the
	// same. 0 means a tenth of the chunk store's limit, and 64 MiB at least.
	MetadataLimit int64

	// Uncached leaves out the chunk store: what is read is fetched, handed out
	// and forgotten. Such a node needs no lock.
	Uncached bool

	// ReadDeadline is how long a read waits for the registry before it fails.
	// Default: 5 minutes.
	ReadDeadline time.Duration

	// Stale says what a tag stands for while the registry does not answer.
	Stale StalePolicy

	// AcceptUnverifiedTOC allows the table of contents of a layer for which the
	// manifest has no digest. Otherwise such a layer is taken as one that has none.
	AcceptUnverifiedTOC bool

	// Platform is the platform whose image is taken from a multi-platform one.
	// Default: Linux on this machine's processor.
	Platform v1.Platform

	// Cluster makes the node a member of a cluster. Default: it works alone.
	Cluster *ClusterConfig

	// CRI makes the node stand between kubelet and containerd's image service, to
	// learn the credentials of pods. Its Log is not used, and without a Puller it is
	// given the node's own, if the node is a snapshotter. Default: it does not.
	CRI *cri.Config

	// Monitor has the node give metrics by HTTP. Default: it does not.
	Monitor MonitorConfig

	// Containerd makes the node a snapshotter of containerd. Default: it is none.
	Containerd *ContainerdConfig

	// Hold finds what holds the descriptors of mounts while the node is away, because
	// it was killed or another version takes its place. With it mounts outlive the
	// node: those who use them wait, and the next node on the same folder goes on. It
	// waits until nobody serves the mounts any more, and is called again when what
	// it has found has gone. Default: mounts end with the node.
	Hold func(ctx context.Context) (Holder, error)

	// Origin says how registries are reached.
	Origin origin.Config

	// Drill turns mechanisms off. Default: none.
	Drill Drill

	// Log gets what a person should act on. Default: discard.
	Log *slog.Logger
}

// A StalePolicy says whether a tag may stand for what it stood for last, while the
// registry does not answer. Such an image is marked as stale wherever it is seen.
// The zero value allows it.
type StalePolicy struct {
	Deny   bool
	MaxAge time.Duration // since a registry said so; 0: no limit
}

// withDefaults returns c with its defaults filled in, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.State == "" {
		return c, errors.New("no state folder was given")
	}
	if c.ReadDeadline < 0 || c.StoreLimit < 0 || c.MetadataLimit < 0 || c.Stale.MaxAge < 0 {
		return c, errors.New("the read deadline, the limits of the store and of metadata, and the age of stale tags must not be negative")
	}
	if c.ReadDeadline == 0 {
		c.ReadDeadline = 5 * time.Minute
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Drill.apply(&c)
	for _, limit := range []*time.Duration{&c.Origin.Timeouts.Header, &c.Origin.Timeouts.Stall} {
		if *limit == 0 {
			*limit = c.patience()
		}
	}
	return c, nil
}

// patience is how long a request may stay without an answer: short enough to make
// it anew, and again, before the read deadline.
func (c *Config) patience() time.Duration {
	return max(time.Second, min(30*time.Second, c.ReadDeadline/4))
}

// silence is how long another node may say nothing while it is asked: a read must
// have the time to ask several, one after the other.
func (c *Config) silence() time.Duration {
	return max(2*time.Second, min(5*time.Second, c.ReadDeadline/10))
}

// DockerKeychain returns the credentials that Docker's own client would use:
// those in the config.json of $DOCKER_CONFIG, or of .docker in the home folder,
// and those of the helpers named there.
func DockerKeychain() origin.Keychain {
	dir := os.Getenv("DOCKER_CONFIG")
	if home, err := os.UserHomeDir(); dir == "" && err == nil {
		dir = filepath.Join(home, ".docker")
	}
	return origin.DockerConfig{Dir: dir}
}
