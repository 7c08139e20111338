package cri

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"graze/chunk"
)

// A Judge knows what a registry allows.
type Judge interface {
	// MayPull returns nil if the registry lets a user pull an image, an error
	// that matches chunk.ErrDenied or chunk.ErrNotFound if it does not, and any
	// other one if that can't be found out now.
	MayPull(ctx context.Context, image string, a Auth) error

	// Repository names the repository of an image, "docker.io/library/alpine": what
	// a verdict is good for.
	Repository(image string) (string, error)
}

// An Outage is a policy for pulls of images that are here, or that a Puller can get,
// while the registry can't be asked whether they are allowed.
type Outage int

const (
	AllowCached Outage = iota // those to whom the registry said yes since the proxy was started
	Deny                      // nobody
	Allow                     // everybody
)

// outages has the names of the policies.
var outages = [...]string{"allow-cached", "deny", "allow"}

// ParseOutage returns the policy of a name.
func ParseOutage(s string) (Outage, error) {
	for i, name := range outages {
		if s == name {
			return Outage(i), nil
		}
	}
	return 0, fmt.Errorf("%.50q is none of allow-cached, deny and allow", s)
}

// String returns the policy's name.
func (o Outage) String() string { return outages[o] }

// allows reports whether the policy lets an image be had on a verdict without the
// registry. It has no say where the registry has answered.
func (o Outage) allows(v verdict) bool {
	return v == outdated && o != Deny || v == unknown && o == Allow
}

// A verdict is what is known of a user and a repository.
type verdict int

const (
	unknown  verdict = iota // the registry can't be asked
	outdated                // nor now, but it said yes before
	allowed
	refused
)

const (
	// judgePatience is how long the registry may take to answer.
	judgePatience = 10 * time.Second

	maxVerdicts = 4096
)

// A gate asks a judge and remembers when it said yes.
type gate struct {
	judge Judge
	age   time.Duration
	key   [sha256.Size]byte // of the hashes that name users: they tell nothing to who reads them

	mu  sync.Mutex
	yes map[[sha256.Size]byte]time.Time // when the registry said yes; guarded by mu
}

func newGate(judge Judge, age time.Duration) *gate {
	g := &gate{judge: judge, age: age, yes: make(map[[sha256.Size]byte]time.Time)}
	rand.Read(g.key[:]) // which never fails
	return g
}

// ask returns the verdict on a pull, and the reason if it is not allowed.
func (g *gate) ask(ctx context.Context, image, repository string, a Auth) (verdict, error) {
	g.mu.Lock()
	said, ok := g.yes[g.name(repository, a)]
	g.mu.Unlock()
	if ok && time.Since(said) < g.age {
		return allowed, nil
	}
	return g.askAnew(ctx, image, repository, a)
}

// askAnew is ask, whatever is remembered.
func (g *gate) askAnew(ctx context.Context, image, repository string, a Auth) (verdict, error) {
	name := g.name(repository, a)
	ctx, cancel := context.WithTimeoutCause(ctx, judgePatience, errors.New("the registry has not answered in time"))
	defer cancel()
	err := g.judge.MayPull(ctx, image, a)
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.yes[name]
	switch {
	case err == nil:
		g.addLocked(name)
		return allowed, nil
	case errors.Is(err, chunk.ErrUnavailable) || ctx.Err() != nil:
		if ok {
			return outdated, err
		}
		return unknown, err
	case errors.Is(err, chunk.ErrDenied) || errors.Is(err, chunk.ErrNotFound):
		delete(g.yes, name)
		return refused, err
	case ok:
		return outdated, err
	}
	return unknown, err
}

func (g *gate) addLocked(name [sha256.Size]byte) {
	if len(g.yes) >= maxVerdicts {
		clear(g.yes) // the registry will be asked again
	}
	g.yes[name] = time.Now()
}

// name returns the hash by which a user's verdict on a repository is remembered.
func (g *gate) name(repository string, a Auth) [sha256.Size]byte {
	text, err := json.Marshal([]any{repository, a})
	if err != nil {
		panic(err) // strings can always be marshalled
	}
	h := hmac.New(sha256.New, g.key[:])
	h.Write(text)
	return [sha256.Size]byte(h.Sum(nil))
}
