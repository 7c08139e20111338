package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"graze/chaos/scenario"
)

// TestScenarios plays all scenarios that come with graze, and each once more without
// the mechanism that it is about: then it must fail.
func TestScenarios(t *testing.T) {
	needFUSE(t)
	needNetwork(t)
	needTools(t, "go")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range scenario.Names() {
		for _, off := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/off=%v", name, off), func(t *testing.T) {
				t.Parallel()
				s, err := scenario.Builtin(name)
				if err != nil {
					t.Fatal(err)
				}
				if r := played(t, binary, s, off); r.OK() == off {
					t.Errorf("with its mechanism turned off: %v; what must hold has held: %v", off, r.OK())
				}
			})
		}
	}
}

// played plays a scenario, and logs its report.
func played(t *testing.T, binary string, s *scenario.Scenario, off bool) *scenario.Report {
	t.Helper()
	r, err := scenario.Play(t.Context(), s, scenario.Config{Binary: binary, Seed: 1, Off: off})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	return r
}

// TestSoak plays random faults of one seed for a short time.
func TestSoak(t *testing.T) {
	needFUSE(t)
	needNetwork(t)
	needTools(t, "go")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	if r := played(t, binary, scenario.Soak(1, 40*time.Second), false); !r.OK() {
		t.Error("what must hold does not")
	}
}

func TestChaosList(t *testing.T) {
	list := graze(t, "chaos", "list")
	for _, name := range scenario.Names() {
		if !strings.Contains(list, name+" ") {
			t.Errorf("%s is not in the list", name)
		}
	}
}
