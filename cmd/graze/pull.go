package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/spf13/cobra"

	"graze/node"
)

// A pull says how containerd is had to pull an image.
type pull struct {
	address     string
	namespace   string
	snapshotter string
}

// newPull returns the command that has containerd pull an image.
func newPull(o *options) *cobra.Command {
	var p pull
	c := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Have containerd pull an image lazily",
		Long: `Pull has containerd pull an image with graze as the snapshotter, and tells graze
which image it is. The layers that graze serves lazily are not fetched.

It is for clients that can't do so themselves: the ctr of containerd 1 fetches all
layers before it asks a snapshotter. The credentials are those of Docker's
config.json. The image's name must be complete.`,
		Example: `  graze pull docker.io/library/python:3
  ctr run --rm --snapshotter graze docker.io/library/python:3 one python3 --version`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return p.run(c.Context(), o, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&p.address, "address", "/run/containerd/containerd.sock", "containerd's socket")
	f.StringVarP(&p.namespace, "namespace", "n", "default", "containerd's namespace: k8s.io is that of Kubernetes")
	f.StringVar(&p.snapshotter, "snapshotter", "graze", "what graze is called in containerd's settings")
	f.BoolVar(&o.plainHTTP, "plain-http", false, "speak plain HTTP to the registry (loopback addresses always do)")
	f.StringVar(&o.hostsDir, "hosts-dir", "", "folder of hosts.toml files, as containerd's certs.d")
	f.StringVar(&o.platform, "platform", "", "platform of a multi-platform image, such as linux/arm64 (default: this machine's)")
	return c
}

// run pulls an image.
func (p *pull) run(ctx context.Context, o *options, ref string) error {
	// The client's own log is for its developers.
	if err := log.SetLevel(log.ErrorLevel.String()); err != nil {
		return err
	}
	ctd, err := client.New(p.address, client.WithDefaultNamespace(p.namespace))
	if err != nil {
		return fmt.Errorf("containerd at %s: %w", p.address, err)
	}
	defer ctd.Close()
	ctx = namespaces.WithNamespace(ctx, p.namespace)
	platform := platforms.Default()
	if o.platform != "" {
		want, err := platforms.Parse(o.platform)
		if err != nil {
			return err
		}
		platform = platforms.Only(want)
	}
	img, err := ctd.Pull(ctx, ref,
		client.WithPullUnpack,
		client.WithPullSnapshotter(p.snapshotter),
		client.WithPlatformMatcher(platform),
		client.WithResolver(docker.NewResolver(docker.ResolverOptions{Hosts: registryHosts(ctx, o)})),
		client.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(ref)),
	)
	if err != nil {
		return o.explainOutage(ctx, ref, err)
	}
	_, err = fmt.Fprintf(o.stdout, "pulled %s: %s\n", img.Name(), img.Target().Digest)
	return err
}

// explainOutage adds to why a pull has failed what can be done, if a registry could
// not be reached and a node runs here.
func (o *options) explainOutage(ctx context.Context, ref string, err error) error {
	var netErr *net.OpError
	if !errors.As(err, &netErr) || ctx.Err() != nil {
		return err
	}
	remote, dialErr := node.Dial(node.Socket(o.state))
	if dialErr != nil {
		return err
	}
	defer remote.Close()
	if _, statsErr := remote.Stats(ctx); statsErr != nil {
		return err
	}
	return fmt.Errorf("%w\nThe node here may have the image without the registry: 'graze mount %s DIR' mounts it, and pulls by the node's cri.socket get it if cri.outage allows", err, ref)
}

// registryHosts returns what containerd's client needs to know of registries.
func registryHosts(ctx context.Context, o *options) docker.RegistryHosts {
	keys := node.DockerKeychain()
	opts := config.HostOptions{Credentials: func(host string) (user, secret string, err error) {
		for cred, err := range keys.Credentials(ctx, hubName(host), "") {
			if err != nil || cred.IdentityToken != "" {
				return "", cred.IdentityToken, err
			}
			return cred.Username, cred.Password, nil
		}
		return "", "", nil
	}}
	if o.hostsDir != "" {
		opts.HostDir = config.HostDirFromRoot(o.hostsDir)
	}
	if o.plainHTTP {
		opts.DefaultScheme = "http"
	}
	return config.ConfigureHosts(ctx, opts)
}

// hubName returns the name of a registry whose host has another.
func hubName(host string) string {
	if host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}
