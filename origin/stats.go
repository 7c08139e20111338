package origin

// Stats counts what a client has done, since New.
type Stats struct {
	// Hosts has the most recently used hosts by name, at most 256.
	Hosts map[string]HostStats
}

// HostStats counts what has been done with one host.
type HostStats struct {
	Requests   int64 // sent
	Bytes      int64 // of answers' bodies that were read
	Errors     int64 // requests that failed by transport, stall or status 5xx
	Retries    int64 // requests that were made again, and transfers that were resumed
	Throttled  int64 // answers with status 429
	Reresolved int64 // redirects that were asked for again because their target had expired
}

// Stats returns the counters.
func (c *Client) Stats() Stats {
	s := Stats{Hosts: make(map[string]HostStats)}
	for _, h := range c.hosts.values() {
		t := s.Hosts[h.name] // http and https of one name count together
		t.Requests += h.requests.Load()
		t.Bytes += h.bytes.Load()
		t.Errors += h.errors.Load()
		t.Retries += h.retries.Load()
		t.Throttled += h.throttled.Load()
		t.Reresolved += h.reresolved.Load()
		s.Hosts[h.name] = t
	}
	return s
}
