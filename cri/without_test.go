package cri

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A cluster gives the backend images.
type cluster struct {
	mu    sync.Mutex
	to    *backend        // guarded by mu
	has   map[string]bool // guarded by mu
	asked []string        // guarded by mu
	told  []string        // guarded by mu
}

func (c *cluster) Pull(_ context.Context, image string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, image)
	if !c.has[image] {
		return errors.New("nobody has it")
	}
	c.to.mu.Lock()
	defer c.to.mu.Unlock()
	c.to.images[image] = true
	return nil
}

func (c *cluster) Pulled(_ context.Context, image string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, image)
	return errors.New("which is no reason to fail")
}

// newClusterRig is newRig with a cluster that has images of r/app and r/other.
func newClusterRig(t *testing.T, cfg Config) (*rig, *cluster) {
	t.Helper()
	c := &cluster{has: map[string]bool{"r/app:2": true, "r/app:3": true, "r/other:1": true}}
	cfg.Puller = c
	r := newRig(t, cfg)
	c.to = r.backend
	return r, c
}

// TestPullWithout pulls what is not here while the registry does not answer. By
// then it has said yes to one user, for one repository.
func TestPullWithout(t *testing.T) {
	for _, row := range []struct {
		policy                      Outage
		good, other, nobody, absent codes.Code
		asked                       string
	}{
		{AllowCached, codes.OK, codes.Unknown, codes.Unknown, codes.Unknown, "r/app:2 r/app:9"},
		{Deny, codes.Unavailable, codes.Unavailable, codes.Unknown, codes.Unavailable, ""},
		{Allow, codes.OK, codes.OK, codes.OK, codes.Unknown, "r/app:2 r/app:3 r/other:1 r/app:9"},
	} {
		for _, age := range []time.Duration{time.Nanosecond, time.Hour} {
			t.Run(row.policy.String()+" "+age.String(), func(t *testing.T) {
				r, c := newClusterRig(t, Config{Outage: row.policy, VerdictAge: age})
				if _, code := r.pull(t, "r/app:1", "good"); code != codes.OK || len(c.asked) != 0 {
					t.Fatal(code, c.asked)
				}
				r.down, r.backend.err = true, status.Error(codes.Unknown, "connection refused")
				for _, try := range []struct {
					image, user string
					want        codes.Code
				}{{"r/app:2", "good", row.good}, {"r/app:3", "other", row.other}, {"r/other:1", "", row.nobody}, {"r/app:9", "good", row.absent}} {
					want := try.want
					if row.policy == Deny && age == time.Hour && try.user == "good" {
						want = codes.Unknown // the yes is young enough, and containerd fails
					}
					ref, code := r.pull(t, try.image, try.user)
					if code != want || code == codes.OK && ref != "id of "+try.image {
						t.Errorf("%s by %q: %q, %v, want %v", try.image, try.user, ref, code, want)
					}
				}
				if got := strings.Join(c.asked, " "); got != row.asked {
					t.Errorf("the cluster was asked for %q, want %q", got, row.asked)
				}
				if said := strings.Contains(r.log.String(), "without its registry"); said != (row.good == codes.OK) || strings.Contains(r.log.String(), "hunter2") {
					t.Errorf("log: %s", r.log)
				}
				if got := strings.Join(c.told, " "); got != "r/app:1" {
					t.Errorf("the cluster was told of %q", got)
				}
				if r.memory["good r/app:9"] != 0 {
					t.Errorf("remembered of a pull that failed: %v", r.memory)
				}
			})
		}
	}
}

// TestPullWithoutRefused asks nobody else where the registry has answered: neither
// for what is not here, nor for what is.
func TestPullWithoutRefused(t *testing.T) {
	for _, policy := range []Outage{AllowCached, Deny, Allow} {
		t.Run(policy.String(), func(t *testing.T) {
			r, c := newClusterRig(t, Config{Outage: policy})
			r.pull(t, "r/app:1", "good")
			r.backend.err = status.Error(codes.Unknown, "the disk is full")
			if _, code := r.pull(t, "r/app:2", "good"); code != codes.Unknown {
				t.Errorf("a pull that fails for another reason: %v", code)
			}
			r.may["good"] = false
			if ref, code := r.pull(t, "r/app:1", "good"); code != codes.Unknown {
				t.Errorf("of what is here, after the registry has changed its mind: %q, %v", ref, code)
			}
			if ref, code := r.pull(t, "r/app:2", "good"); code == codes.OK {
				t.Errorf("of what is not here, after the registry has changed its mind: %q", ref)
			}
			if _, code := r.pull(t, "r/other:1", ""); code != codes.Unknown {
				t.Errorf("nobody's pull that the registry refuses: %v", code)
			}
			if len(c.asked) != 0 {
				t.Errorf("the cluster was asked for %q", c.asked)
			}
		})
	}
}
