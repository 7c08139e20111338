package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"graze/chunk"
	"graze/materialize"
	"graze/node"
)

// newMaterialize returns the command that completes containerd's content store.
func newMaterialize(o *options) *cobra.Command {
	var opts materialize.Options
	address := ""
	c := &cobra.Command{
		Use:   "materialize IMAGE",
		Short: "Give containerd the blobs of an image that was pulled lazily",
		Long: `Materialize fetches what containerd's content store lacks of an image, so that the
image can be exported, pushed, saved, converted and committed. IMAGE is the name
that containerd has ('ctr -n NAMESPACE images ls'). Blobs come from the state folder
or the registry; through the running node if there is one, with its credentials.
What was broken off is taken up where it ended.`,
		Example: `  graze materialize docker.io/library/debian:12
  graze materialize --namespace k8s.io registry.example/team/app:1.4
  ctr -n k8s.io images export app.tar registry.example/team/app:1.4`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.platform != "" {
				p, err := platforms.Parse(o.platform)
				if err != nil {
					return &usageError{command: c.CommandPath(), err: fmt.Errorf("--platform: %w", err)}
				}
				opts.Platforms = append(opts.Platforms, p)
			}
			return o.materialize(c, address, args[0], opts)
		},
	}
	o.addRegistryFlags(c)
	f := c.Flags()
	f.StringVarP(&opts.Namespace, "namespace", "n", "default", "containerd's namespace; kubelet's is k8s.io")
	f.StringVarP(&address, "address", "a", "/run/containerd/containerd.sock", "containerd's socket")
	f.StringVar(&opts.Repository, "repository", "", "where the image is from (default: by its name, or what containerd remembers)")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

// materialize does the command's work.
func (o *options) materialize(c *cobra.Command, address, image string, opts materialize.Options) error {
	src, closeSource, err := o.blobSource(c)
	if err != nil {
		return err
	}
	defer closeSource()
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	bars := newProgress(o.stderr)
	opts.Progress = func(blob digest.Digest, done, total int64) { bars.update(blob.Encoded()[:12], done, total) }
	report, err := materialize.Image(c.Context(), conn, image, src, opts)
	bars.close()
	if err != nil {
		return err
	}
	if o.json {
		return o.printJSON(report)
	}
	_, err = fmt.Fprintf(o.stdout, "%s: containerd has all %d blobs; %d were fetched (%s)\n", image, report.Blobs, report.Fetched, size(report.Bytes))
	return err
}

// A blobReader reads blobs: a running node, or the library of the state folder.
type blobReader interface {
	ReadBlob(ctx context.Context, repository string, blob chunk.Blob, size, off int64) (io.ReadCloser, error)
}

// blobSource makes a materialize.Source of a blobReader.
type blobSource struct{ blobReader }

// Read implements materialize.Source.
func (s blobSource) Read(ctx context.Context, repository string, blob digest.Digest, size, off int64) (io.ReadCloser, error) {
	return s.ReadBlob(ctx, repository, chunk.Blob(blob), size, off)
}

// blobSource returns where blobs are read from. The caller closes it.
func (o *options) blobSource(c *cobra.Command) (materialize.Source, func() error, error) {
	remote, err := node.Dial(node.Socket(o.state))
	if err == nil {
		if _, err = remote.Stats(c.Context()); err == nil {
			return blobSource{remote}, remote.Close, nil
		}
		err = errors.Join(err, remote.Close())
	}
	if !errors.Is(err, node.ErrNotRunning) {
		return nil, nil, err
	}
	cfg, err := o.config(c)
	if err != nil {
		return nil, nil, err
	}
	lib, err := node.OpenLibrary(cfg)
	if err != nil {
		return nil, nil, err
	}
	return blobSource{lib}, lib.Close, nil
}
