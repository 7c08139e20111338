package snapshotter

import (
	"context"

	"graze/chunk"
)

// Images is the node, as far as the snapshotter needs it. Errors wrap those of
// package chunk, or ErrNoIndex.
type Images interface {
	// Resolve finds an image by its name. One that is known by digest is found
	// without the network.
	Resolve(ctx context.Context, name string) (Image, error)

	// Ready gets or makes all that it takes to mount an image without the network, by
	// the name that Resolve has got.
	// Indexes of layers that have none are made only if build is set.
	Ready(ctx context.Context, name string, build bool) error

	// Mount mounts a view on a folder, unless it is mounted there already.
	Mount(ctx context.Context, v View, dir string) error

	// Unmount takes away what is mounted on a folder, if anything is. It is served
	// until its last user is gone.
	Unmount(dir string) error
}

// An Image is what the snapshotter needs to know of an image.
type Image struct {
	Name       string // by digest: "registry.example/app@sha256:…"
	Repository string // "registry.example/app"
	Size       int64  // of all layers, as the registry has them, in bytes

	// Unpackable says that containerd can unpack the layers. Those of some formats
	// are no archives of files.
	Unpackable bool

	// Chains has the chain ID of each layer and those below it, the lowest first.
	Chains []chunk.Blob
}

// A View is what a mount shows: the lowest layers of an image.
type View struct {
	Image  string `json:"image"` // by digest
	Layers int    `json:"layers"`
}

// A Finder finds the image that a layer is of, for clients that don't tell. It
// returns chunk.ErrNotFound if it can't.
type Finder interface {
	Find(ctx context.Context, chain chunk.Blob) (Found, error)
}

// A Found is what a Finder knows of a layer.
type Found struct {
	Image   string // complete name, by digest
	Fetched bool   // containerd has the layer already
}
