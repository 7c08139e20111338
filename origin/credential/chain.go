package credential

import (
	"context"
	"iter"

	"graze/origin"
)

// A Chain asks one source after the other.
type Chain []origin.Keychain

// Credentials implements origin.Keychain.
func (c Chain) Credentials(ctx context.Context, host, repository string) iter.Seq2[origin.Credential, error] {
	return func(yield func(origin.Credential, error) bool) {
		for _, source := range c {
			for cred, err := range source.Credentials(ctx, host, repository) {
				if !yield(cred, err) {
					return
				}
			}
		}
	}
}

// One is a keychain that has a single credential, for whatever it is asked for.
type One origin.Credential

// Credentials implements origin.Keychain.
func (o One) Credentials(context.Context, string, string) iter.Seq2[origin.Credential, error] {
	return func(yield func(origin.Credential, error) bool) { yield(origin.Credential(o), nil) }
}
