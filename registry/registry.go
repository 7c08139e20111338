package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
)

// A Registry serves the content of one directory. Make it with [New].
type Registry struct {
	cfg    Config
	store  *store
	counts map[Kind]*counters
	flight flight
}

// New opens the registry in the directory root, which is made if it is not
// there. It fails if another Registry has the directory open, in this process
// or another. Close it after the last request.
func New(root string, cfg Config) (*Registry, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	s, err := openStore(root)
	if err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	return &Registry{cfg: cfg, store: s, counts: newCounters()}, nil
}

// Close lets others open the directory. Requests after it fail. Further calls
// do nothing.
func (r *Registry) Close() error { return r.store.close() }

// An exchange is one request on its way through the handlers.
type exchange struct {
	w   *recorder
	req *http.Request
	route
	digest digest // of what is asked for, once it is known
}

// A handler answers a request, or returns the error to answer it with.
type handler func(*exchange) error

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	x := &exchange{w: &recorder{ResponseWriter: w, head: req.Method == http.MethodHead}, req: req}
	x.kind = KindOther
	r.flight.enter()
	defer r.finish(x)
	w.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
	if err := r.serve(x); err != nil {
		r.writeError(x, err)
	}
}

func (r *Registry) serve(x *exchange) (err error) {
	if x.route, err = parseRoute(x.req.URL.Path); err != nil {
		return err
	}
	handlers := r.handlers(x.route)
	h, ok := handlers[x.req.Method]
	if !ok {
		return errMethod(x, slices.Sorted(maps.Keys(handlers)))
	}
	return h(x)
}

// handlers returns what can be done at a route, by method.
func (r *Registry) handlers(rt route) map[string]handler {
	switch rt.kind {
	case KindBase:
		return map[string]handler{http.MethodGet: getBase, http.MethodHead: getBase}
	case KindBlob:
		return map[string]handler{
			http.MethodGet:    r.getBlob,
			http.MethodHead:   r.getBlob,
			http.MethodDelete: r.deleteBlob,
		}
	case KindManifest:
		return map[string]handler{
			http.MethodGet:    r.getManifest,
			http.MethodHead:   r.getManifest,
			http.MethodPut:    r.putManifest,
			http.MethodDelete: r.deleteManifest,
		}
	case KindUpload:
		if rt.ref == "" {
			return map[string]handler{http.MethodPost: r.startUpload}
		}
		return map[string]handler{
			http.MethodGet:    r.getUpload,
			http.MethodPatch:  r.patchUpload,
			http.MethodPut:    r.finishUpload,
			http.MethodDelete: r.cancelUpload,
		}
	case KindReferrers:
		return map[string]handler{http.MethodGet: r.getReferrers, http.MethodHead: r.getReferrers}
	case KindTags:
		return map[string]handler{http.MethodGet: r.getTags, http.MethodHead: r.getTags}
	case KindCatalog:
		return map[string]handler{http.MethodGet: r.getCatalog, http.MethodHead: r.getCatalog}
	}
	panic("registry: no handlers for " + string(rt.kind))
}

// getBase tells that this is a registry.
func getBase(x *exchange) error {
	writeJSON(x, http.StatusOK, "application/json", struct{}{})
	return nil
}

// ifMissing replaces an error of the store that something is not there.
func ifMissing(err, instead error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return instead
	}
	return err
}
