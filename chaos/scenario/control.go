package scenario

import (
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	"go.yaml.in/yaml/v3"

	"graze/chaos"
)

// A Control has a registry's faults set by HTTP. PUT takes what the step "registry"
// of a scenario has, in YAML; GET tells what has gone through, in JSON.
type Control struct {
	Faults *chaos.Registry
	Gate   *chaos.Gate

	mu sync.Mutex // held while faults are set
}

// maxControl is the most bytes of a request's body.
const maxControl = 64 << 10

// ServeHTTP implements http.Handler.
func (c *Control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct {
			chaos.Counts
			Connections int64
		}{c.Faults.Counts(), c.Gate.Attempts()})
	case http.MethodPut:
		var reg Registry
		d := yaml.NewDecoder(http.MaxBytesReader(w, r.Body, maxControl))
		d.KnownFields(true)
		err := d.Decode(&reg)
		if err == nil {
			err = reg.check()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := c.set(&reg); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	default:
		http.Error(w, "PUT a fault, or GET what has gone through", http.StatusMethodNotAllowed)
	}
}

// set sets what is wrong with the registry.
func (c *Control) set(r *Registry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.Faults.Set(r.Fault.chaos()), c.Gate.Set(r.door()))
}
