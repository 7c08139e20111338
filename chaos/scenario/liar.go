package scenario

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

const (
	liarName = "liar"
	liarAddr = "10.77.254.1"
)

// startLiar adds a member that lies, in the first rack, and waits until all know
// it.
func (c *cluster) startLiar(ctx context.Context) error {
	m, err := c.net.Add(0, liarAddr, c.spec.Link)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(c.dir+"/"+liarName+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.binary, "chaos", "liar", "--key", c.dir+"/key", "--name", liarName,
		"--addr", liarAddr, "--rack", "rack-0", "--join", c.address(0)+":7946")
	cmd.Stdout, cmd.Stderr = log, log
	if c.liar, err = m.Start(cmd); err != nil {
		return err
	}
	return each(c.nodes, func(n *node) error {
		if !n.running() {
			return nil
		}
		return poll(ctx, func() error {
			select {
			case <-c.liar.Exited():
				return fatal{fmt.Errorf("the liar has ended: %v", c.liar.Err())}
			default:
			}
			_, err := n.seesLiar(ctx)
			return err
		})
	})
}

// seesLiar returns what the node knows of the liar.
func (n *node) seesLiar(ctx context.Context) (state liarState, err error) {
	list, err := n.peers(ctx)
	if err != nil {
		return state, err
	}
	for _, p := range list {
		if p.Name == liarName {
			return liarState{deceived: p.Corrupt > 0, avoids: p.State == "quarantined"}, nil
		}
	}
	return state, fmt.Errorf("%s does not know the liar", n.name)
}

// A liarState is what a node has learned about the liar.
type liarState struct{ deceived, avoids bool }
