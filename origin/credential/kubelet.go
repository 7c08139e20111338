package credential

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"iter"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"graze/origin"
)

const (
	// refreshPause is how long a plugin's answer is kept at least: credentials
	// that are refused have the plugin asked anew, but not by each request.
	refreshPause = 10 * time.Second

	// maxAnswers bounds how many answers of plugins are kept.
	maxAnswers = 1024
)

// A Kubelet is a keychain that asks kubelet's credential provider plugins, by the
// file and the folder that kubelet itself is started with. The file is read for
// each question; a missing one has no plugins.
type Kubelet struct {
	// Config is kubelet's --image-credential-provider-config: a file, or a folder
	// of files. BinDir is its --image-credential-provider-bin-dir.
	Config, BinDir string

	// Timeout bounds the run of a plugin. Default: 1 minute, as kubelet's.
	Timeout time.Duration

	// Log gets what is wrong with a plugin's configuration. Default: discard.
	Log *slog.Logger

	mu      sync.Mutex
	answers map[answerKey]*answer // guarded by mu
	warned  map[string]bool       // plugins that can't be used; guarded by mu
}

// An answerKey names the answers of a plugin that are good for the same images.
type answerKey struct{ plugin, scope string }

// Credentials implements origin.Keychain. What a plugin said before comes first,
// while it is valid; if that is refused, the plugin is asked again.
func (k *Kubelet) Credentials(ctx context.Context, host, repository string) iter.Seq2[origin.Credential, error] {
	return func(yield func(origin.Credential, error) bool) {
		source := "credential provider plugins of " + k.Config
		providers, err := readProviders(k.Config)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if err != nil {
			yield(origin.Credential{Source: source}, err)
			return
		}
		image := host + "/" + repository
		for _, p := range providers {
			if matchesAny(p.MatchImages, image) && k.usable(&p) && !k.fromPlugin(ctx, &p, image, yield) {
				return
			}
		}
		yield(origin.Credential{Source: source}, nil)
	}
}

// usable reports whether a plugin can be asked without kubelet, and warns once if
// it can't.
func (k *Kubelet) usable(p *provider) bool {
	if p.TokenAttributes == nil || !p.TokenAttributes.RequireServiceAccount {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.warned == nil {
		k.warned = make(map[string]bool)
	}
	if !k.warned[p.Name] && k.Log != nil {
		k.Log.Warn("credential provider plugin wants a service account's token, which only kubelet can give", "plugin", p.Name)
	}
	k.warned[p.Name] = true
	return false
}

// fromPlugin yields what one plugin has for an image. It reports whether to go on
// with the next plugin.
func (k *Kubelet) fromPlugin(ctx context.Context, p *provider, image string, yield func(origin.Credential, error) bool) bool {
	old, ok := k.kept(p.Name, image)
	if ok {
		for _, cred := range old.credentials(image, p.Name) {
			if !yield(cred, nil) {
				return false
			}
		}
		if time.Since(old.asked) < refreshPause {
			return true
		}
	}
	fresh, err := k.ask(ctx, p, image)
	if err != nil {
		return yield(origin.Credential{}, err)
	}
	for _, cred := range fresh.credentials(image, p.Name) {
		if !yield(cred, nil) {
			return false
		}
	}
	return true
}

// kept returns the answer of a plugin that is good for an image and has not
// expired.
func (k *Kubelet) kept(plugin, image string) (*answer, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for _, kind := range []string{cacheImage, cacheRegistry, cacheGlobal} {
		key := answerKey{plugin, scopeOf(kind, image)}
		a := k.answers[key]
		if a != nil && now.Before(a.expires) {
			return a, true
		}
		delete(k.answers, key)
	}
	return nil, false
}

// keep remembers an answer for as long as the plugin allows.
func (k *Kubelet) keep(plugin, image string, a *answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.answers == nil || len(k.answers) >= maxAnswers {
		k.answers = make(map[answerKey]*answer) // plugins will be asked again
	}
	k.answers[answerKey{plugin, scopeOf(a.kind, image)}] = a
}

// ask runs a plugin and keeps its answer.
func (k *Kubelet) ask(ctx context.Context, p *provider, image string) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.Timeout, time.Minute))
	defer cancel()
	a, err := p.run(ctx, filepath.Join(k.BinDir, p.Name), image)
	if err != nil {
		return nil, err
	}
	if time.Until(a.expires) > 0 {
		k.keep(p.Name, image, a)
	}
	return a, nil
}
