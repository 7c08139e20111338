package origin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"graze/chunk"
)

// A refusalKey names a credential that was refused for a scope.
type refusalKey struct {
	grant grantKey
	cred  Credential
}

const (
	maxRefusals = 256

	// rememberRefusal is how long a refused credential is shown only after all
	// others. It is not given up: what a registry refuses now it may take later.
	rememberRefusal = time.Minute

	// maxShown bounds how many credentials one request shows.
	maxShown = 8
)

func (a *authorizer) refuse(s scope, cred Credential) {
	a.c.refusals.put(refusalKey{a.key(s), cred}, time.Now().Add(rememberRefusal))
}

// refused returns until when a credential is shown after the others, the zero
// time if it is not.
func (a *authorizer) refused(s scope, cred Credential) time.Time {
	until, ok := a.c.refusals.get(refusalKey{a.key(s), cred})
	if !ok || !time.Now().Before(until) {
		return time.Time{}
	}
	return until
}

func (a *authorizer) credentials(ctx context.Context, repo string) iter.Seq2[Credential, error] {
	if a.c.cfg.Keychain == nil {
		return func(func(Credential, error) bool) {}
	}
	return a.c.cfg.Keychain.Credentials(ctx, a.host, repo)
}

// showEach gets a grant for the first credential that is not refused. Those that
// were refused lately come last, the longest ago first. If there is none at all,
// it asks as nobody.
func (a *authorizer) showEach(ctx context.Context, s scope, offer challenge) (grant, error) {
	var late []Credential // refused lately
	var sources []string  // that have none
	var failed []error
	for cred, err := range a.credentials(ctx, s.repo) {
		switch {
		case err != nil:
			failed = append(failed, err)
		case cred.anonymous():
			sources = append(sources, cred.Source)
		case !a.refused(s, cred).IsZero():
			late = append(late, cred)
		default:
			g, err := a.show(ctx, s, offer, cred)
			if err == nil || !errors.Is(err, chunk.ErrDenied) {
				return g, err
			}
			a.refuse(s, cred)
			failed = append(failed, err)
		}
		if len(failed)+len(late) >= maxShown {
			break
		}
	}
	slices.SortStableFunc(late, func(x, y Credential) int { return a.refused(s, x).Compare(a.refused(s, y)) })
	for _, cred := range late {
		g, err := a.show(ctx, s, offer, cred)
		if err == nil || !errors.Is(err, chunk.ErrDenied) {
			return g, err
		}
		a.refuse(s, cred)
		failed = append(failed, err)
	}
	if len(failed) > 0 {
		return grant{}, joinErrors(failed)
	}
	return a.show(ctx, s, offer, Credential{Source: strings.Join(sources, ", ")})
}

// another returns what to send after the last of the credentials that a request
// has shown was refused by the registry itself. It reports false if there is
// nothing else to show.
func (a *authorizer) another(ctx context.Context, s scope, used grant, shown []Credential) (grant, bool) {
	if used.cred.anonymous() {
		return grant{}, false // nobody has any
	}
	a.refuse(s, used.cred)
	// Another request may have been faster.
	if g, ok := a.c.grants.get(a.key(s)); ok && !slices.Contains(shown, g.cred) && time.Now().Before(g.expiry) {
		return g, true
	}
	other := false
	for cred, err := range a.credentials(ctx, s.repo) {
		if other = err == nil && !cred.anonymous() && !slices.Contains(shown, cred); other {
			break
		}
	}
	if !other {
		return grant{}, false
	}
	a.c.grants.removeIf(a.key(s), func(g grant) bool { return g.header == used.header })
	a.mu.Lock()
	offer := a.offer
	a.mu.Unlock()
	g, err := a.fetch(ctx, s, offer)
	return g, err == nil && !slices.Contains(shown, g.cred)
}

// joinErrors returns the first error, with the others in brackets. It is all of
// them to errors.Is.
func joinErrors(errs []error) error {
	err := errs[0]
	for _, other := range errs[1:] {
		err = fmt.Errorf("%w (also %w)", err, other)
	}
	return err
}
