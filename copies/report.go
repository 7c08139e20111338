package copies

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxSpans bounds the spans of an image that is kept: a report must fit into a
// message between nodes.
const MaxSpans = 256 << 10

// Bits are a set of spans, by their numbers.
type Bits []byte

// NewBits returns an empty set of numbers below n.
func NewBits(n int) Bits { return make(Bits, (n+7)/8) }

// Has reports whether span n is in the set.
func (b Bits) Has(n uint32) bool { return int(n/8) < len(b) && b[n/8]&(1<<(n%8)) != 0 }

func (b Bits) set(n uint32, has bool) {
	if has {
		b[n/8] |= 1 << (n % 8)
	} else {
		b[n/8] &^= 1 << (n % 8)
	}
}

// A Report says how much of an image one node keeps.
type Report struct {
	// View tells views of the image apart: only reports of the same view can be
	// added. It is empty until the node has opened the image.
	View  string `json:"view,omitempty"`
	Spans int    `json:"spans,omitempty"` // of the image
	Held  Bits   `json:"held,omitempty"`  // spans that are here and stay
	Full  bool   `json:"full,omitempty"`  // there is no room for all of the node's share
	Error string `json:"error,omitempty"` // why the share is not complete
}

// A Status says whether an image could be read everywhere without a registry.
type Status struct {
	Safe   bool      `json:"safe"`
	Why    string    `json:"why"`
	Copies int       `json:"copies"` // of the span of which there are fewest
	Wanted int       `json:"wanted"` // copies that there shall be
	One    float64   `json:"one"`    // share of the image of which there is a copy, 0 to 1
	All    float64   `json:"all"`    // share of which there are as many as wanted
	At     time.Time `json:"-"`      // when the nodes were asked, by the clock of who has the Status
}

// An Answer is what one member says of an image.
type Answer struct {
	Node   string // for people
	Report Report
	Err    error // it could not be asked
}

// judge makes a Status of what all members say.
func judge(answers []Answer, wanted int, now time.Time) Status {
	wanted = min(wanted, len(answers))
	s := Status{Wanted: wanted, At: now}
	view, opened := commonView(answers)
	var counts []int
	var silent, full, broken, other []string
	for _, a := range answers {
		switch {
		case a.Err != nil:
			silent = append(silent, a.Node)
			continue
		case a.Report.View == "" && a.Report.Error != "":
			broken = append(broken, fmt.Sprintf("%s: %.200s", a.Node, a.Report.Error))
			continue
		case a.Report.View == "":
			continue // it has not opened it yet
		case a.Report.View != view, a.Report.Spans < 0, a.Report.Spans > MaxSpans:
			other = append(other, a.Node)
			continue
		}
		if counts == nil {
			counts = make([]int, a.Report.Spans)
		}
		if a.Report.Full {
			full = append(full, a.Node)
		} else if a.Report.Error != "" {
			broken = append(broken, fmt.Sprintf("%s: %.200s", a.Node, a.Report.Error))
		}
		for n := range counts {
			if a.Report.Held.Has(uint32(n)) {
				counts[n]++
			}
		}
	}
	s.count(counts, opened)
	s.Safe = opened > 0 && s.Copies >= wanted && opened >= wanted
	var why []string
	switch {
	case s.Safe && wanted == 1:
		s.Why = "all of it is on one node at least"
		return s
	case s.Safe:
		s.Why = fmt.Sprintf("all of it is on %d nodes at least", s.Copies)
		return s
	case opened == 0:
		why = append(why, "no node has opened it yet")
	case s.One < 1:
		why = append(why, fmt.Sprintf("%.1f %% of it has no copy yet", 100*(1-s.One)))
	default:
		why = append(why, fmt.Sprintf("%.1f %% of it is on fewer than %d nodes", 100*(1-s.All), wanted))
	}
	s.Why = strings.Join(slices.Concat(why, complaint(full, "no room"), complaint(silent, "no answer"), complaint(other, "another view of it"), broken[:min(len(broken), 1)]), "; ")
	return s
}

// complaint says of how many nodes something is true, and names some.
func complaint(nodes []string, what string) []string {
	if len(nodes) == 0 {
		return nil
	}
	slices.Sort(nodes)
	text := fmt.Sprintf("%d nodes have %s: %s", len(nodes), what, strings.Join(nodes[:min(len(nodes), 3)], ", "))
	if len(nodes) == 1 {
		text = nodes[0] + " has " + what
	}
	return []string{text}
}

// commonView returns the view that most nodes have, and how many have it.
func commonView(answers []Answer) (view string, opened int) {
	count := make(map[string]int)
	for _, a := range answers {
		v := a.Report.View
		if v == "" || a.Err != nil || a.Report.Spans < 0 || a.Report.Spans > MaxSpans {
			continue
		}
		if count[v]++; count[v] > opened || count[v] == opened && v < view {
			view, opened = v, count[v]
		}
	}
	return view, opened
}

// count sets what counts of copies say.
func (s *Status) count(counts []int, opened int) {
	if len(counts) == 0 {
		if opened > 0 { // an image without a byte
			s.Copies, s.One, s.All = opened, 1, 1
		}
		return
	}
	s.Copies = slices.Min(counts)
	one, all := 0, 0
	for _, n := range counts {
		if n >= 1 {
			one++
		}
		if n >= s.Wanted {
			all++
		}
	}
	s.One, s.All = float64(one)/float64(len(counts)), float64(all)/float64(len(counts))
}
