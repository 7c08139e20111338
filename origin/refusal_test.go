package origin

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
)

// listKeychain has several credentials, which a test can change.
type listKeychain struct {
	mu    sync.Mutex
	creds []Credential // guarded by mu
}

func (k *listKeychain) set(users ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.creds = nil
	for _, user := range users {
		k.creds = append(k.creds, Credential{Username: user, Password: "p", Source: "the test"})
	}
}

func (k *listKeychain) Credentials(context.Context, string, string) iter.Seq2[Credential, error] {
	k.mu.Lock()
	defer k.mu.Unlock()
	creds := slices.Clone(k.creds)
	return func(yield func(Credential, error) bool) {
		for _, c := range creds {
			var err error
			if c.Username == "broken" {
				c, err = Credential{}, unavailable(errors.New("source is broken"))
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

// A door lets in whom it is told to, and remembers who came.
type door struct {
	mu      sync.Mutex
	welcome string   // guarded by mu
	came    []string // guarded by mu
}

func (d *door) admit(user string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.welcome, d.came = user, nil
}

func (d *door) guests() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.came
}

func (d *door) before(w http.ResponseWriter, r *http.Request) bool {
	user, _, _ := r.BasicAuth()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.came = append(d.came, user)
	if user == d.welcome {
		return false
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

// TestNextCredential has a registry that refuses some credentials: the next are
// shown, what works is kept, and what is right later works later.
func TestNextCredential(t *testing.T) {
	f, d, keys := newFake(), new(door), new(listKeychain)
	f.addImage("a", platform("linux/amd64"))
	f.before = d.before
	c, ref := newClient(t, Config{Keychain: keys}), serve(t, f)+"/app:a"
	for _, step := range []struct {
		name    string
		keys    []string
		welcome string
		came    string // before the first answer that isn't a refusal
		err     string
	}{
		{"second is right", []string{"wrong", "right"}, "right", " wrong right", ""},
		{"what worked is used at once", []string{"wrong", "right"}, "right", "right", ""},
		{"first is right by now", []string{"wrong", "right"}, "wrong", "right right wrong", ""},
		{"rotated", []string{"new"}, "new", "wrong new", ""},
		{"all are wrong", []string{"a", "b"}, "nobody", "new a b", `with credentials of "b"`},
		{"one of them became right", []string{"a", "b"}, "a", "b a", ""},
		{"a broken source", []string{"broken", "c"}, "c", "a c", ""},
		{"a broken source and none other", []string{"broken"}, "d", "c", "source is broken"},
	} {
		keys.set(step.keys...)
		d.admit(step.welcome)
		err := onceResolve(t, c, ref)
		checkError(t, err, step.err)
		if came := strings.Join(d.guests(), " "); !strings.HasPrefix(came, step.came) {
			t.Errorf("%s: came %q, want %q first", step.name, came, step.came)
		}
	}
}

// onceResolve resolves an image, and waits no longer than one round takes.
func onceResolve(t *testing.T, c *Client, ref string) error {
	t.Helper()
	_, err := resolve(t.Context(), c, ref, platform("linux/amd64"))
	return err
}

// TestNextToken does the same where a token service refuses.
func TestNextToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memNet
		f, keys := newFake(), new(listKeychain)
		f.addImage("a", platform("linux/amd64"))
		tokens := newTokenServer()
		tokens.realm, tokens.user = "http://auth.test/token", "right:p"
		serveMem(t, &net, "r.test", tokens.protect(f))
		serveMem(t, &net, "auth.test", tokens)
		c := newClient(t, Config{PlainHTTP: true, Dial: net.dial, Keychain: keys})
		keys.set("wrong", "right")
		for range 2 {
			if err := onceResolve(t, c, "r.test/app:a"); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff([]string{"wrong", "right"}, tokens.users()); diff != "" {
			t.Error(diff)
		}
		// What was refused a moment ago comes last; later it has its place again.
		tokens.revoke()
		if err := onceResolve(t, c, "r.test/app:a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * rememberRefusal)
		if err := onceResolve(t, c, "r.test/app:a"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"wrong", "right", "right", "wrong", "right"}, tokens.users()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestMayPull asks on behalf of several users. What one was granted must not
// count for another, nor what a mirror says.
func TestMayPull(t *testing.T) {
	own, mirror, d := newFake(), newFake(), new(door)
	own.addImage("a", platform("linux/amd64"))
	mirror.addImage("a", platform("linux/amd64"))
	own.before = d.before
	c, host := mirrored(t, own, mirror)
	d.admit("good")
	for _, row := range []struct {
		name string
		keys Keychain
		ref  string
		no   bool
	}{
		{"may", fixedKeychain{Username: "good"}, "/app:a", false},
		{"may not", fixedKeychain{Username: "bad"}, "/app:a", true},
		{"nobody", nil, "/app:a", true},
		{"may again", fixedKeychain{Username: "good"}, "/app:a", false},
		{"no such image", fixedKeychain{Username: "good"}, "/app:b", true},
	} {
		err := c.MayPull(t.Context(), host+row.ref, row.keys)
		if IsRefusal(err) != row.no || (err != nil) != row.no {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	if got := mirror.requests(""); len(got) > 0 {
		t.Errorf("the mirror was asked: %q", got)
	}
	own.mu.Lock()
	own.before = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	}
	own.mu.Unlock()
	if err := c.MayPull(t.Context(), host+"/app:a", nil); IsRefusal(err) || !errors.Is(err, chunk.ErrUnavailable) {
		t.Errorf("registry in trouble: %v", err)
	}
}
