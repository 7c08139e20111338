package cri

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// An Auth is what a user shows to a registry. The zero value is nobody's.
type Auth struct {
	Username, Password string
	IdentityToken      string
	RegistryToken      string
}

// noticePatience is how long containerd may take to show in CRI an image that was
// given to it.
const noticePatience = 30 * time.Second

// tellPatience is how long a pull may wait for its image to be kept for outages.
const tellPatience = 10 * time.Second

// A Memory is told with which credentials images are pulled.
type Memory interface {
	// Remember is told before a pull, and reports whether that is new.
	Remember(image string, a Auth) bool
	// Forget takes back what Remember was told, as the pull has failed.
	Forget(image string, a Auth)
}

// A Puller gives containerd an image without asking its registry.
type Puller interface {
	// Pull returns when containerd has the image.
	Pull(ctx context.Context, image string) error

	// Pulled is told of an image that containerd has pulled from its registry.
	Pulled(ctx context.Context, image string) error
}

// A call is a PullImage that waits for its answer.
type call struct {
	conn    *grpc.ClientConn
	service string // "runtime.v1.ImageService"
	down    grpc.ServerStream
}

// pull decides about a PullImage, and forwards it.
func (p *Proxy) pull(ctx context.Context, c call, raw frame) error {
	var req runtime.PullImageRequest
	if err := proto.Unmarshal(raw.bytes, &req); err != nil {
		return status.Error(codes.InvalidArgument, "PullImage: the request can't be read")
	}
	image := req.GetImage().GetImage()
	repository, err := p.gate.judge.Repository(image)
	if err != nil {
		return forward(ctx, c.conn, "/"+c.service+"/PullImage", raw, c.down) // containerd says what is wrong
	}
	auth, err := authOf(req.GetAuth(), repository)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "PullImage of %.200q: %v", image, err)
	}
	id, err := c.imageID(ctx, req.GetImage())
	if err != nil {
		return err
	}
	// Nobody's pull of what is not here is containerd's to decide: it may have
	// credentials of its own.
	if id != "" || auth != (Auth{}) {
		switch verdict, why := p.gate.ask(ctx, image, repository, auth); {
		case verdict == refused:
			return status.Errorf(codes.PermissionDenied, "pull of %.200q: the registry does not allow it: %v", image, why)
		case verdict == allowed:
		case p.cfg.Outage.allows(verdict) && id != "":
			return p.useAsIs(c, image, id, why)
		case id != "" || p.cfg.Outage == Deny:
			return status.Errorf(codes.Unavailable, "pull of %.200q: the registry can't be asked whether it is allowed, and the policy for that is %s: %v", image, p.cfg.Outage, why)
		}
	}
	added := auth != (Auth{}) && p.memory.Remember(image, auth)
	err = forward(ctx, c.conn, "/"+c.service+"/PullImage", raw, c.down)
	if err != nil && (id != "" || p.cfg.Puller != nil) && p.cfg.Outage != Deny && ctx.Err() == nil {
		// The yes may be older than the outage for which containerd has failed.
		switch verdict, why := p.gate.askAnew(ctx, image, repository, auth); {
		case !p.cfg.Outage.allows(verdict):
		case id != "":
			return p.useAsIs(c, image, id, why)
		default:
			id, notHad := p.pullWithout(ctx, c, req.GetImage())
			if notHad == nil {
				p.cfg.Log.Warn("image is pulled without its registry, which can't be asked", "image", image, "policy", p.cfg.Outage, "err", why)
				return c.down.SendMsg(&runtime.PullImageResponse{ImageRef: id})
			}
			err = status.Errorf(status.Code(err), "%s; without the registry: %v", status.Convert(err).Message(), notHad)
		}
	}
	if err != nil && added {
		p.memory.Forget(image, auth)
	}
	if err == nil && p.cfg.Puller != nil {
		p.tell(ctx, image)
	}
	return err
}

// tell tells the Puller of an image that containerd has pulled. The pull has
// succeeded, whatever comes of that.
func (p *Proxy) tell(ctx context.Context, image string) {
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	if err := p.cfg.Puller.Pulled(ctx, image); err != nil {
		p.cfg.Log.Warn("what an image's name stands for is not kept for outages", "image", image, "err", err)
	}
}

// useAsIs answers that the image that is here will do.
func (p *Proxy) useAsIs(c call, image, id string, why error) error {
	p.cfg.Log.Warn("image is used as it is here: the registry can't be asked", "image", image, "policy", p.cfg.Outage, "err", why)
	return c.down.SendMsg(&runtime.PullImageResponse{ImageRef: id})
}

// pullWithout has containerd get an image without its registry, and returns the ID.
func (p *Proxy) pullWithout(ctx context.Context, c call, image *runtime.ImageSpec) (string, error) {
	if err := p.cfg.Puller.Pull(ctx, image.GetImage()); err != nil {
		return "", err
	}
	// containerd's service for CRI hears of images that others have made.
	ctx, cancel := context.WithTimeoutCause(ctx, noticePatience, errors.New("containerd has the image, but does not show it"))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if id, err := c.imageID(ctx, image); id != "" || err != nil && ctx.Err() == nil {
			return id, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// imageID returns the ID of an image that containerd has, "" if it has not.
func (c *call) imageID(ctx context.Context, image *runtime.ImageSpec) (string, error) {
	var resp runtime.ImageStatusResponse
	err := c.conn.Invoke(ctx, "/"+c.service+"/ImageStatus", &runtime.ImageStatusRequest{Image: image}, &resp)
	return resp.GetImage().GetId(), err
}

// authOf returns the credentials of a request, in the order in which containerd
// looks for them. Those that are meant for another registry are nobody's.
func authOf(a *runtime.AuthConfig, repository string) (Auth, error) {
	switch {
	case !isFor(a, repository):
		return Auth{}, nil
	case a.GetUsername() != "":
		return Auth{Username: a.GetUsername(), Password: a.GetPassword()}, nil
	case a.GetIdentityToken() != "":
		return Auth{IdentityToken: a.GetIdentityToken()}, nil
	case a.GetAuth() != "":
		text, err := base64.StdEncoding.DecodeString(a.GetAuth())
		user, password, ok := strings.Cut(string(text), ":")
		if err != nil || !ok {
			return Auth{}, errors.New("auth is not user:password in base64")
		}
		return Auth{Username: user, Password: strings.Trim(password, "\x00")}, nil
	case a.GetRegistryToken() != "":
		return Auth{RegistryToken: a.GetRegistryToken()}, nil
	}
	return Auth{}, nil
}

// dockerHub has the names of Docker's registry.
var dockerHub = []string{"docker.io", "index.docker.io", "registry-1.docker.io"}

// isFor reports whether credentials are meant for the registry of a repository.
func isFor(a *runtime.AuthConfig, repository string) bool {
	address := a.GetServerAddress()
	if address == "" {
		return true
	}
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		address = u.Host
	}
	registry, _, _ := strings.Cut(repository, "/")
	return address == registry || slices.Contains(dockerHub, address) && slices.Contains(dockerHub, registry)
}
