package origin

import (
	"context"
	"net/http"
	"time"
)

// A HostReply is what a host of a registry has answered to Ping.
type HostReply struct {
	Host string
	Own  bool      // the registry itself, not a mirror
	Date time.Time // of the host's clock, in whole seconds; zero if it did not say
	Sent time.Time // of this machine's clock, when the answer came
	Err  error     // no answer, or one that shows a host in trouble
}

// Ping asks each host of a registry, mirrors first, whether it is there. Any answer
// will do, also one that wants credentials.
func (c *Client) Ping(ctx context.Context, registry string) ([]HostReply, error) {
	endpoints, err := c.endpoints(registry, 0)
	if err != nil {
		return nil, err
	}
	var list []HostReply
	for _, e := range endpoints {
		reply := HostReply{Host: e.host.name, Own: e.own}
		u := *e.base
		u.Path += "/"
		resp, err := c.send(newRequest(ctx, http.MethodGet, &u), e.host, e.rt)
		if err == nil {
			reply.Sent = time.Now()
			reply.Date, _ = http.ParseTime(resp.Header.Get("Date"))
			if resp.StatusCode >= http.StatusInternalServerError {
				err = newStatusError(resp)
			}
			resp.Body.Close()
		}
		reply.Err = err
		list = append(list, reply)
	}
	return list, nil
}
