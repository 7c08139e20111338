package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"graze/chaos/scenario"
)

// TestScenarios plays all scenarios that come with graze. With GRAZE_TEST_CLUSTER
// each is played once more without the mechanism that it is about, and must fail;
// otherwise those of quickOff are.
func TestScenarios(t *testing.T) {
	needFUSE(t)
	needNetwork(t)
	needTools(t, "go")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range scenario.Names() {
		t.Run(name, func(t *testing.T) {
			if r := playedScenario(t, binary, name, false); !r.OK() {
				t.Error("what must hold does not")
			}
		})
		if os.Getenv(wholeClusterEnv) == "" && !quickOff[name] {
			continue
		}
		t.Run(name+"/off", func(t *testing.T) {
			if r := playedScenario(t, binary, name, true); r.OK() {
				t.Error("the scenario passes without what it is about")
			}
		})
	}
}

// quickOff has the scenarios that fail within seconds when they are turned off.
var quickOff = map[string]bool{"outage-at-start": true, "rolling-restart": true, "liar": true}

// playedScenario plays a scenario that comes with graze.
func playedScenario(t *testing.T, binary, name string, off bool) *scenario.Report {
	t.Helper()
	s, err := scenario.Builtin(name)
	if err != nil {
		t.Fatal(err)
	}
	return played(t, binary, s, off)
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
