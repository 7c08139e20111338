package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"graze/image/imagetest"
)

// A privateRegistry wants a password, and lets some users see some repositories.
type privateRegistry struct {
	addr string
	stop func()

	mu   sync.Mutex
	may  map[string]bool // "user:password repository"; guarded by mu
	came []string        // "user method kind" of each request that showed a user; guarded by mu
}

// startPrivate puts a door before a registry.
func startPrivate(t testing.TB, behind *testRegistry) *privateRegistry {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind.addr})
	p := &privateRegistry{may: make(map[string]bool)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		repository, kind := "", ""
		if parts := strings.Split(r.URL.Path, "/"); len(parts) > 3 {
			repository, kind = parts[2], parts[3]
		}
		p.mu.Lock()
		if user != "" {
			p.came = append(p.came, user+" "+r.Method+" "+kind)
		}
		may := p.may[user+":"+password+" "+repository]
		p.mu.Unlock()
		if !may {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	p.addr, p.stop = strings.TrimPrefix(srv.URL, "http://"), sync.OnceFunc(srv.Close)
	t.Cleanup(p.stop)
	return p
}

func (p *privateRegistry) allow(user, password, repository string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.may[user+":"+password+" "+repository] = true
}

// visits returns what was asked since the last call.
func (p *privateRegistry) visits() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	came := p.came
	p.came = nil
	return came
}

// A fileNode is a 'graze node' that is run with a configuration file.
type fileNode struct {
	cmd    *exec.Cmd
	exited chan error
	stderr *bytes.Buffer
}

// startFileNode runs a node until the end of the test, or until it is stopped.
func startFileNode(t testing.TB, config string) *fileNode {
	t.Helper()
	n := &fileNode{exited: make(chan error, 1), stderr: new(bytes.Buffer)}
	n.cmd = exec.Command(os.Args[0], "node", "-v", "--config", config)
	n.cmd.Env = append(os.Environ(), runEnv+"=1", "DOCKER_CONFIG="+t.TempDir())
	n.cmd.Stderr = n.stderr
	stdout, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(stdout)
	line, _ := r.ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, r)
		n.exited <- n.cmd.Wait()
		close(n.exited)
	}()
	t.Cleanup(func() { n.stop(t) })
	if line == "" {
		t.Fatalf("graze node: %v\n%s", <-n.exited, n.stderr)
	}
	return n
}

// stop ends the node.
func (n *fileNode) stop(t testing.TB) {
	t.Helper()
	_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	if err := <-n.exited; err != nil {
		t.Errorf("graze node: %v\n%s", err, n.stderr)
	}
}

// An imageService is a CRI image service, asked as kubelet does.
type imageService struct{ runtime.ImageServiceClient }

func dialCRI(t testing.TB, socket string) imageService {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return imageService{runtime.NewImageServiceClient(conn)}
}

// pull pulls an image as a user.
func (s imageService) pull(ctx context.Context, image, user, password string) codes.Code {
	_, err := s.PullImage(ctx, &runtime.PullImageRequest{
		Image: &runtime.ImageSpec{Image: image},
		Auth:  &runtime.AuthConfig{Username: user, Password: password},
	})
	return status.Code(err)
}

// TestPrivateImages pulls by kubelet's way through a node and a real containerd,
// as one who may and as one who may not; then without the registry; then reads
// lazily with what the pull has shown.
func TestPrivateImages(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	reg.push(t, smallImage(t, imagetest.Gzip(6)), "private:1")
	door := startPrivate(t, reg)
	const secret = "hunter2-is-not-in-any-file"
	door.allow("ann", secret, "private")
	image := door.addr + "/private:1"

	ctd := startContainerdWith(t, containerdConfig{cri: true})
	state, run := t.TempDir(), t.TempDir()
	config := filepath.Join(run, "node.toml")
	text := fmt.Sprintf("state = %q\nkeep-mounts = \"nobody\"\n[cri]\nsocket = %q\nverdict-age = \"1ns\"\n[containerd]\naddress = %q\n",
		state, run+"/cri.sock", ctd.dir+"/sock")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startFileNode(t, config)
	proxy, direct := dialCRI(t, run+"/cri.sock"), dialCRI(t, ctd.dir+"/sock")

	if code := proxy.pull(t.Context(), image, "ben", secret); code != codes.PermissionDenied {
		t.Errorf("who may not: %v", code)
	}
	if code := proxy.pull(t.Context(), image, "ann", secret); code != codes.OK {
		t.Fatalf("who may: %v\n%s", code, n.stderr)
	}
	if code := proxy.pull(t.Context(), image, "ben", secret); code != codes.PermissionDenied {
		t.Errorf("who may not, now that the image is here: %v", code)
	}
	// What containerd does by itself: it asks for the manifest, with what it was
	// given, for an image that it has, too.
	door.visits()
	if code := direct.pull(t.Context(), image, "ann", secret); code != codes.OK {
		t.Errorf("containerd itself: %v", code)
	}
	if came := door.visits(); !slices.Equal(came, []string{"ann HEAD manifests"}) {
		t.Errorf("containerd asked %q for an image that it has", came)
	}
	if code := direct.pull(t.Context(), image, "ben", secret); code == codes.OK {
		t.Error("containerd itself lets in who may not")
	}

	dir := t.TempDir()
	graze(t, "mount", "--node", filepath.Join(state, "graze.sock"), image, dir)
	checkMotd(t, dir)
	graze(t, "umount", dir)

	door.stop()
	if code := proxy.pull(t.Context(), image, "ann", secret); code != codes.OK {
		t.Errorf("without the registry, who may: %v", code)
	}
	if code := proxy.pull(t.Context(), image, "ben", secret); code != codes.Unavailable {
		t.Errorf("without the registry, who may not: %v", code)
	}
	if code := direct.pull(t.Context(), image, "ann", secret); code == codes.OK {
		t.Error("containerd needs no registry for an image that it has; then nor do pulls in an outage need the proxy")
	}

	// A restart forgets credentials, and needs none for what is here.
	n.stop(t)
	again := startFileNode(t, config)
	graze(t, "mount", "--node", filepath.Join(state, "graze.sock"), image, dir)
	checkMotd(t, dir)
	graze(t, "umount", dir)
	again.stop(t)

	for _, log := range []*bytes.Buffer{n.stderr, again.stderr} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("a log shows the secret:\n%s", log)
		}
	}
	for _, folder := range []string{state, run, ctd.dir} {
		grepFolder(t, folder, secret)
	}
}

// checkMotd reads the files of smallImage.
func checkMotd(t testing.TB, dir string) {
	t.Helper()
	if p, err := os.ReadFile(filepath.Join(dir, "etc/motd")); err != nil || string(p) != "hello\n" {
		t.Errorf("%q, %v", p, err)
	}
	if p, err := os.ReadFile(filepath.Join(dir, "big/random")); err != nil || !bytes.Equal(p, imagetest.Random(1, 5<<20)) {
		t.Errorf("other bytes, %v", err)
	}
}

// grepFolder fails if a file of a folder has a text.
func grepFolder(t testing.TB, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		p, err := os.ReadFile(name)
		if bytes.Contains(p, []byte(text)) {
			t.Errorf("%s has the secret", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestCredentialsSurvive kills a node that has a private image mounted, whose
// credentials it knows only of a pod. The next one must be able to read on.
func TestCredentialsSurvive(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	behind := reg.push(t, smallImage(t, imagetest.Gzip(6)), "private:1")
	graze(t, "index", "--push", "--state", t.TempDir(), behind)
	door := startPrivate(t, reg)
	const secret = "hunter2-is-not-in-any-file"
	door.allow("ann", secret, "private")
	image := door.addr + "/private:1"

	ctd := startContainerdWith(t, containerdConfig{cri: true})
	state, run := t.TempDir(), t.TempDir()
	config := filepath.Join(run, "node.toml")
	text := fmt.Sprintf("state = %q\nread-deadline = \"20s\"\n[cri]\nsocket = %q\n[containerd]\naddress = %q\n", state, run+"/cri.sock", ctd.dir+"/sock")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startFileNode(t, config)
	if code := dialCRI(t, run+"/cri.sock").pull(t.Context(), image, "ann", secret); code != codes.OK {
		t.Fatalf("pull: %v\n%s", code, n.stderr)
	}
	dir := t.TempDir()
	graze(t, "mount", "--node", filepath.Join(state, "graze.sock"), image, dir)
	if p, err := os.ReadFile(filepath.Join(dir, "etc/motd")); err != nil || string(p) != "hello\n" {
		t.Errorf("%q, %v", p, err)
	}
	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-n.exited
	door.visits()
	again := startFileNode(t, config)
	checkMotd(t, dir)
	if came := door.visits(); !slices.Contains(came, "ann GET blobs") {
		t.Errorf("the registry was asked %q: nothing had to be read from it", came)
	}
	graze(t, "umount", dir)
	again.stop(t)
	grepFolder(t, state, secret)
	for _, log := range []*bytes.Buffer{n.stderr, again.stderr} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("a log shows the secret:\n%s", log)
		}
	}
}
