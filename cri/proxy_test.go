package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"graze/chunk"
)

// A backend is containerd's image service: it has the images that were pulled.
type backend struct {
	runtime.UnimplementedImageServiceServer
	mu     sync.Mutex
	images map[string]bool             // guarded by mu
	pulls  []*runtime.PullImageRequest // guarded by mu
	err    error                       // of the next pulls; guarded by mu
}

func (b *backend) ImageStatus(_ context.Context, r *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.images[r.GetImage().GetImage()] {
		return &runtime.ImageStatusResponse{}, nil
	}
	return &runtime.ImageStatusResponse{Image: &runtime.Image{Id: "id of " + r.GetImage().GetImage()}}, nil
}

func (b *backend) PullImage(_ context.Context, r *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pulls = append(b.pulls, r)
	if b.err != nil {
		return nil, b.err
	}
	b.images[r.GetImage().GetImage()] = true
	return &runtime.PullImageResponse{ImageRef: "pulled " + r.GetImage().GetImage()}, nil
}

func (b *backend) ListImages(context.Context, *runtime.ListImagesRequest) (*runtime.ListImagesResponse, error) {
	return &runtime.ListImagesResponse{Images: []*runtime.Image{{Id: "a"}, {Id: "b"}}}, nil
}

func (b *backend) StreamImages(_ *runtime.StreamImagesRequest, s grpc.ServerStreamingServer[runtime.StreamImagesResponse]) error {
	for range 3 {
		if err := s.Send(&runtime.StreamImagesResponse{}); err != nil {
			return err
		}
	}
	return nil
}

// A court is a judge and a memory.
type court struct {
	mu     sync.Mutex
	may    map[string]bool // users; guarded by mu
	down   bool            // guarded by mu
	asked  []string        // users; guarded by mu
	memory map[string]int  // "user image"; guarded by mu
}

func (c *court) MayPull(_ context.Context, _ string, a Auth) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, a.Username)
	switch {
	case c.down:
		return fmt.Errorf("%w: the registry is down", chunk.ErrUnavailable)
	case !c.may[a.Username]:
		return fmt.Errorf("%w: status 401", chunk.ErrDenied)
	}
	return nil
}

func (c *court) Repository(image string) (string, error) {
	if strings.Contains(image, "!") {
		return "", errors.New("no name of an image")
	}
	repository, _, _ := strings.Cut(image, ":")
	return repository, nil
}

func (c *court) Remember(image string, a Auth) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory[a.Username+" "+image]++
	return c.memory[a.Username+" "+image] == 1
}

func (c *court) Forget(image string, a Auth) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.memory, a.Username+" "+image)
}

// A rig is a proxy between a client and a backend.
type rig struct {
	*backend
	*court
	log    *strings.Builder
	conn   *grpc.ClientConn
	client runtime.ImageServiceClient
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{
		backend: &backend{images: make(map[string]bool)},
		court:   &court{may: map[string]bool{"good": true}, memory: make(map[string]int)},
		log:     new(strings.Builder),
	}
	cfg.Socket, cfg.Containerd = filepath.Join(dir, "run/cri.sock"), filepath.Join(dir, "containerd.sock")
	cfg.Log = slog.New(slog.NewTextHandler(r.log, nil))
	ln, err := net.Listen("unix", cfg.Containerd)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	runtime.RegisterImageServiceServer(srv, r.backend)
	p, err := New(r.court, r.court, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(ln) })
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	if r.conn, err = grpc.NewClient("unix://"+cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))); err != nil {
		t.Fatal(err)
	}
	r.client = runtime.NewImageServiceClient(r.conn)
	t.Cleanup(func() {
		r.conn.Close()
		cancel()
		srv.Stop()
		wg.Wait()
	})
	return r
}

// pull pulls an image as a user and returns what kubelet would see.
func (r *rig) pull(t *testing.T, image, user string) (string, codes.Code) {
	t.Helper()
	req := &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: image}}
	if user != "" {
		req.Auth = &runtime.AuthConfig{Username: user, Password: "hunter2"}
	}
	resp, err := r.client.PullImage(t.Context(), req)
	if err != nil && strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v shows a secret", err)
	}
	return resp.GetImageRef(), status.Code(err)
}

// TestForward passes calls that the proxy knows nothing of.
func TestForward(t *testing.T) {
	r := newRig(t, Config{})
	list, err := r.client.ListImages(t.Context(), &runtime.ListImagesRequest{})
	if err != nil || len(list.GetImages()) != 2 {
		t.Errorf("list: %v, %v", list, err)
	}
	stream, err := r.client.StreamImages(t.Context(), &runtime.StreamImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; ; n++ {
		if _, err = stream.Recv(); err != nil {
			break
		}
	}
	if n != 3 {
		t.Errorf("%d messages of a stream, then %v", n, err)
	}
	if _, err := r.client.RemoveImage(t.Context(), &runtime.RemoveImageRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call that the backend does not know: %v", err)
	}
	if err := r.conn.Invoke(t.Context(), "/containerd.services.images.v1.Images/List", &runtime.ListImagesRequest{}, &runtime.ListImagesResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call that is not CRI's: %v", err)
	}
	// The old version of the protocol looks the same.
	var resp runtime.PullImageResponse
	req := &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: "r/app:1"}, Auth: &runtime.AuthConfig{Username: "bad"}}
	if err := r.conn.Invoke(t.Context(), "/runtime.v1alpha2.ImageService/PullImage", req, &resp); err == nil {
		t.Error("a pull by the old protocol passes unseen")
	}
}

// TestPull pulls as several users.
func TestPull(t *testing.T) {
	r := newRig(t, Config{})
	r.may["good"], r.may["other"], r.may[""] = true, true, false
	for _, step := range []struct {
		name, image, user string
		ref               string
		code              codes.Code
		asked             int // how often the registry was asked for a verdict until then
	}{
		{"who may not", "r/app:1", "bad", "", codes.PermissionDenied, 1},
		{"who may", "r/app:1", "good", "pulled r/app:1", codes.OK, 2},
		{"who may not, now that it is here", "r/app:1", "bad", "", codes.PermissionDenied, 3},
		{"who may, again", "r/app:1", "good", "pulled r/app:1", codes.OK, 3},
		{"another tag", "r/app:2", "good", "pulled r/app:2", codes.OK, 3},
		{"another repository", "r/tool:1", "good", "pulled r/tool:1", codes.OK, 4},
		{"another user", "r/app:1", "other", "pulled r/app:1", codes.OK, 5},
		{"nobody", "r/app:1", "", "", codes.PermissionDenied, 6},
		{"nobody, of what is not here", "r/open:1", "", "pulled r/open:1", codes.OK, 6},
		{"no name of an image", "!", "bad", "pulled !", codes.OK, 6},
	} {
		ref, code := r.pull(t, step.image, step.user)
		if ref != step.ref || code != step.code || len(r.asked) != step.asked {
			t.Errorf("%s: %q, %v, registry asked %d times; want %q, %v, %d", step.name, ref, code, len(r.asked), step.ref, step.code, step.asked)
		}
	}
	want := map[string]int{"good r/app:1": 2, "good r/app:2": 1, "good r/tool:1": 1, "other r/app:1": 1}
	if diff := cmp.Diff(want, r.memory); diff != "" {
		t.Error(diff)
	}
	if got := r.pulls[0].GetAuth().GetPassword(); got != "hunter2" {
		t.Errorf("containerd got the password %q", got)
	}
}

// TestPullFails forgets what a pull was tried with, but not what worked before.
func TestPullFails(t *testing.T) {
	r := newRig(t, Config{})
	r.backend.err = status.Error(codes.NotFound, "no such image")
	if _, code := r.pull(t, "r/app:1", "good"); code != codes.NotFound || len(r.memory) != 0 {
		t.Errorf("%v; remembered %v", code, r.memory)
	}
	r.backend.err = nil
	r.pull(t, "r/app:1", "good")
	r.backend.err = status.Error(codes.Unavailable, "broken")
	if _, code := r.pull(t, "r/app:1", "good"); code != codes.Unavailable || len(r.memory) != 1 {
		t.Errorf("%v; remembered %v", code, r.memory)
	}
}

// TestOutage pulls what is here while the registry does not answer.
func TestOutage(t *testing.T) {
	for _, row := range []struct {
		policy              Outage
		good, other, absent codes.Code
	}{
		{AllowCached, codes.OK, codes.Unavailable, codes.OK},
		{Deny, codes.Unavailable, codes.Unavailable, codes.Unavailable},
		{Allow, codes.OK, codes.OK, codes.OK},
	} {
		t.Run(row.policy.String(), func(t *testing.T) {
			r := newRig(t, Config{Outage: row.policy, VerdictAge: time.Nanosecond})
			if ref, code := r.pull(t, "r/app:1", "good"); code != codes.OK {
				t.Fatal(ref, code)
			}
			r.down = true
			for _, try := range []struct {
				image, user string
				want        codes.Code
			}{{"r/app:1", "good", row.good}, {"r/app:1", "other", row.other}, {"r/app:9", "other", row.absent}} {
				before := len(r.pulls)
				ref, code := r.pull(t, try.image, try.user)
				if code != try.want {
					t.Errorf("%s by %s: %q, %v, want %v", try.image, try.user, ref, code, try.want)
				}
				if here := try.image == "r/app:1"; here && (len(r.pulls) != before || code == codes.OK && ref != "id of r/app:1") {
					t.Errorf("%s by %s: %q after %d pulls by containerd", try.image, try.user, ref, len(r.pulls)-before)
				}
			}
			if said := strings.Contains(r.log.String(), "registry can't be asked"); said != (row.good == codes.OK) {
				t.Errorf("log: %s", r.log)
			}
			if strings.Contains(r.log.String(), "hunter2") {
				t.Errorf("the log shows a secret: %s", r.log)
			}
		})
	}
}

// TestOutageOfFreshVerdict pulls what is here when the registry has said yes lately, and
// does not answer now: the verdict needs no registry, but containerd does.
func TestOutageOfFreshVerdict(t *testing.T) {
	for policy, want := range map[Outage]codes.Code{AllowCached: codes.OK, Deny: codes.Unknown, Allow: codes.OK} {
		r := newRig(t, Config{Outage: policy})
		r.pull(t, "r/app:1", "good")
		r.down, r.backend.err = true, status.Error(codes.Unknown, "connection refused")
		if ref, code := r.pull(t, "r/app:1", "good"); code != want || code == codes.OK && ref != "id of r/app:1" {
			t.Errorf("%v: %q, %v", policy, ref, code)
		}
		if ref, code := r.pull(t, "r/app:2", "good"); code != codes.Unknown {
			t.Errorf("%v: of what is not here: %q, %v", policy, ref, code)
		}
	}
}

// TestVerdictTaken has the registry change its mind.
func TestVerdictTaken(t *testing.T) {
	r := newRig(t, Config{VerdictAge: time.Nanosecond})
	r.pull(t, "r/app:1", "good")
	r.may["good"] = false
	if _, code := r.pull(t, "r/app:1", "good"); code != codes.PermissionDenied {
		t.Errorf("after the registry said no: %v", code)
	}
	r.down = true
	if _, code := r.pull(t, "r/app:1", "good"); code != codes.Unavailable {
		t.Errorf("in an outage after that: %v", code)
	}
}

func TestAuthOf(t *testing.T) {
	for _, row := range []struct {
		name       string
		auth       *runtime.AuthConfig
		repository string
		want       Auth
		fails      bool
	}{
		{"none", nil, "r/app", Auth{}, false},
		{"user", &runtime.AuthConfig{Username: "u", Password: "p"}, "r/app", Auth{Username: "u", Password: "p"}, false},
		{"user, in base64", &runtime.AuthConfig{Auth: "dTpwOng="}, "r/app", Auth{Username: "u", Password: "p:x"}, false},
		{"no base64", &runtime.AuthConfig{Auth: "!"}, "r/app", Auth{}, true},
		{"token", &runtime.AuthConfig{IdentityToken: "t"}, "r/app", Auth{IdentityToken: "t"}, false},
		{"bearer", &runtime.AuthConfig{RegistryToken: "t"}, "r/app", Auth{RegistryToken: "t"}, false},
		{"another registry", &runtime.AuthConfig{Username: "u", ServerAddress: "https://x"}, "r/app", Auth{}, false},
		{"this registry", &runtime.AuthConfig{Username: "u", ServerAddress: "https://r/v1"}, "r/app", Auth{Username: "u"}, false},
		{"this registry, no URL", &runtime.AuthConfig{Username: "u", ServerAddress: "r"}, "r/app", Auth{Username: "u"}, false},
		{"Docker's", &runtime.AuthConfig{Username: "u", ServerAddress: "https://index.docker.io/v1/"}, "docker.io/library/app", Auth{Username: "u"}, false},
	} {
		got, err := authOf(row.auth, row.repository)
		if got != row.want || (err != nil) != row.fails {
			t.Errorf("%s: %+v, %v", row.name, got, err)
		}
	}
}

// TestSocket listens in place of a dead proxy, not of a living one.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cri.sock")
	ln, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second one: %v", err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	again, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
