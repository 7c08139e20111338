package chaos

import (
	"maps"
	"net"
	"net/http"
)

// Counts are what went through a [Registry].
type Counts struct {
	Requests int64
	Bytes    int64            // of bodies
	Status   map[int]int64    // requests by status
	Subjects map[string]int64 // bytes by what was asked for: "manifests", "blobs", "referrers", or "" for all else
	Clients  map[string]int64 // requests by the client's host
}

// counters are the Counts that are being added to.
type counters struct{ Counts }

// count adds an answer to the counts.
func (r *Registry) count(req *http.Request, w *CountedWriter) {
	client, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		client = req.RemoteAddr
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.counters
	if c.Status == nil {
		c.Status, c.Subjects, c.Clients = make(map[int]int64), make(map[string]int64), make(map[string]int64)
	}
	c.Requests++
	c.Bytes += w.Bytes
	c.Status[w.Status]++
	c.Subjects[string(subjectOf(req.URL.Path))] += w.Bytes
	c.Clients[client]++
}

// Counts returns what has gone through since the start. Requests that are not
// answered to the end are not in it.
func (r *Registry) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counters.Counts
	c.Status, c.Subjects, c.Clients = maps.Clone(c.Status), maps.Clone(c.Subjects), maps.Clone(c.Clients)
	return c
}
