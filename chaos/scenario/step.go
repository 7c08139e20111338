package scenario

import (
	"fmt"
	"strings"
	"time"

	"graze/chaos"
)

// String says what the step does.
func (s *Step) String() string {
	who := string(s.Nodes)
	if who == "" {
		who = "all"
	}
	nodes := "nodes " + who
	switch {
	case s.Start:
		return "start " + nodes
	case s.Kill:
		return "kill " + nodes
	case s.Restart != nil && s.Restart.Signal == signalMemory:
		return "restart " + nodes + " that the kernel kills for want of memory"
	case s.Restart != nil && s.Restart.Signal == "kill":
		return "restart " + nodes + ", killed"
	case s.Restart != nil:
		return "restart " + nodes
	case s.Freeze:
		return "freeze " + nodes
	case s.Thaw:
		return "thaw " + nodes
	case s.Mount:
		return "mount on " + nodes
	case s.Read != nil && s.Read.Every > 0:
		return fmt.Sprintf("read on %s every %v", nodes, time.Duration(s.Read.Every))
	case s.Read != nil:
		return "read on " + nodes
	case s.Registry != nil:
		return s.Registry.String()
	case s.Rack != nil && s.Rack.Cut:
		return fmt.Sprintf("cut rack %d off", s.Rack.Rack)
	case s.Rack != nil:
		return fmt.Sprintf("rack %d comes back", s.Rack.Rack)
	case s.Split != nil && *s.Split:
		return "split the racks"
	case s.Split != nil:
		return "join the racks"
	case s.Link != "":
		return fmt.Sprintf("%s send at %s", nodes, s.Link)
	case s.Disk != "":
		return fmt.Sprintf("disks %s on %s", s.Disk, nodes)
	case s.Clock != nil:
		return fmt.Sprintf("clock of %s is wrong by %v", nodes, time.Duration(*s.Clock))
	case s.Lie:
		return "a liar joins"
	case s.Wait != nil:
		return s.Wait.String()
	}
	return "mark " + s.Mark
}

// String says what is wrong with the registry.
func (r *Registry) String() string {
	switch {
	case r.Door != "" && r.Door != chaos.Open:
		return "registry: " + string(r.Door)
	case r.Fault.Kind == chaos.Status:
		return fmt.Sprintf("registry: status %d", r.Fault.Status)
	case r.Fault.Kind != chaos.None:
		return "registry: " + string(r.Fault.Kind)
	}
	return "registry: all is well"
}

// String says what is waited for.
func (w *Wait) String() string {
	var list []string
	if w.Reads {
		list = append(list, "all is read")
	}
	if w.Copies {
		list = append(list, "there are copies enough")
	}
	if w.Members > 0 {
		list = append(list, fmt.Sprintf("%d members know each other", w.Members))
	}
	if w.For > 0 {
		list = append(list, time.Duration(w.For).String()+" are over")
	}
	return "wait until " + strings.Join(list, ", then ")
}
