package origin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"graze/chunk"
)

// MayPull asks a registry whether the owner of the credentials in keys may see
// the manifest of a reference. It returns nil for yes, an error that matches
// chunk.ErrDenied or ErrNotFound for no, as registries hide what one may not see,
// and another one where that can't be found out.
//
// Only the registry itself is asked: mirrors need not know its users. Nothing
// that the client was granted before counts, and nothing is kept.
func (c *Client) MayPull(ctx context.Context, ref string, keys Keychain) error {
	parsed, err := parseReference(ref)
	if err != nil {
		return err
	}
	guest := c.guest(keys)
	defer guest.Close()
	endpoints, err := guest.endpoints(parsed.registry, canPull)
	if err != nil {
		return err
	}
	endpoints = slices.DeleteFunc(endpoints, func(e *endpoint) bool { return !e.own })
	if len(endpoints) == 0 {
		return fmt.Errorf("configuration of registry %s: the registry itself can't be asked", parsed.registry)
	}
	return guest.each(ctx, endpoints, "check", parsed.String(), func(ctx context.Context, e *endpoint) error {
		_, err := guest.headFrom(ctx, e, parsed)
		if lacksHead(err) {
			_, err = guest.manifestFrom(ctx, e, parsed)
		}
		return err
	})
}

// guest returns a client with other credentials, which shares only what is known
// of hosts.
func (c *Client) guest(keys Keychain) *Client {
	cfg := c.cfg
	cfg.Keychain = keys
	return &Client{
		cfg:        cfg,
		hosts:      c.hosts,
		registries: newLRU[string, *registry](1),
		targets:    newLRU[targetKey, target](1),
		grants:     newLRU[grantKey, grant](1),
		refusals:   newLRU[refusalKey, time.Time](maxRefusals),
		anonymous:  newLRU[anonKey, grant](1),
		tagTurn:    make(chan struct{}, 1),
	}
}

// IsRefusal reports whether an error of MayPull is a no.
func IsRefusal(err error) bool {
	return errors.Is(err, chunk.ErrDenied) || errors.Is(err, chunk.ErrNotFound)
}
