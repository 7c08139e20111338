package credential

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync"

	"graze/origin"
)

const (
	// maxRepositories bounds of how many repositories a Memory has credentials;
	// those that were used the longest ago are forgotten first.
	maxRepositories = 1024

	// maxEach bounds how many credentials of one repository there are: of so many
	// users who pull from it.
	maxEach = 4
)

// A Memory has the credentials that others pulled with, by repository. Its zero
// value is ready for use and empty. What is in it is gone with the process.
type Memory struct {
	mu    sync.Mutex
	order list.List                   // of *remembered, used last first; guarded by mu
	byKey map[memoryKey]*list.Element // guarded by mu
}

type memoryKey struct{ host, repository string }

type remembered struct {
	key   memoryKey
	creds []origin.Credential // the last one that was added first
}

// Add remembers a credential of a repository, as the one to use first. It reports
// whether that is new.
func (m *Memory) Add(host, repository string, cred origin.Credential) bool {
	key := memoryKey{host, repository}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.byKey[key]
	if e == nil {
		if m.byKey == nil {
			m.byKey = make(map[memoryKey]*list.Element)
		}
		e = m.order.PushFront(&remembered{key: key})
		m.byKey[key] = e
	}
	m.order.MoveToFront(e)
	r := e.Value.(*remembered)
	isNew := !slices.Contains(r.creds, cred)
	others := slices.DeleteFunc(r.creds, func(have origin.Credential) bool { return have == cred })
	r.creds = append([]origin.Credential{cred}, others[:min(len(others), maxEach-1)]...)
	if m.order.Len() > maxRepositories {
		last := m.order.Remove(m.order.Back()).(*remembered)
		delete(m.byKey, last.key)
	}
	return isNew
}

// Remove forgets a credential of a repository.
func (m *Memory) Remove(host, repository string, cred origin.Credential) {
	key := memoryKey{host, repository}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.byKey[key]
	if e == nil {
		return
	}
	r := e.Value.(*remembered)
	r.creds = slices.DeleteFunc(r.creds, func(have origin.Credential) bool { return have == cred })
	if len(r.creds) == 0 {
		m.order.Remove(e)
		delete(m.byKey, key)
	}
}

// Credentials implements origin.Keychain.
func (m *Memory) Credentials(_ context.Context, host, repository string) iter.Seq2[origin.Credential, error] {
	m.mu.Lock()
	defer m.mu.Unlock()
	var creds []origin.Credential
	if e := m.byKey[memoryKey{host, repository}]; e != nil {
		m.order.MoveToFront(e)
		creds = slices.Clone(e.Value.(*remembered).creds)
	}
	return func(yield func(origin.Credential, error) bool) {
		for _, cred := range creds {
			if !yield(cred, nil) {
				return
			}
		}
	}
}

// A kept is what a snapshot has of one repository.
type kept struct {
	Host, Repository string
	Credentials      []origin.Credential // the one to use first is the first
}

// Snapshot returns all that is remembered, for Restore. It is as secret as what is
// in it.
func (m *Memory) Snapshot() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := []kept{}
	for e := m.order.Back(); e != nil; e = e.Prev() {
		r := e.Value.(*remembered)
		list = append(list, kept{r.key.host, r.key.repository, r.creds})
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err) // strings can always be marshalled
	}
	return text
}

// Restore adds what a snapshot has. An empty one has nothing.
func (m *Memory) Restore(snapshot []byte) error {
	if len(snapshot) == 0 {
		return nil
	}
	var list []kept
	if json.Unmarshal(snapshot, &list) != nil {
		return errors.New("it is no snapshot of credentials") // its text is a secret
	}
	for _, k := range list {
		for _, cred := range slices.Backward(k.Credentials) {
			m.Add(k.Host, k.Repository, cred)
		}
	}
	return nil
}
