package davittest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

const (
	// startLimit is how long a cluster may take to start on a busy machine.
	startLimit = time.Minute
	// stopLimit is how long it may take to stop: its containers may have to be ended.
	stopLimit = 30 * time.Second
)

// ErrNoBinary says that there is no davit on this machine.
var ErrNoBinary = errors.New("no davit was found beside the test or in PATH; DAVIT_BINARY=FILE names one")

// Options say what a cluster is to have. By default it is the control plane: API server, scheduler and controllers, which
// need no privileges.
type Options struct {
	// Binary is the program, instead of the one that is found.
	Binary string
	// APIServerOnly leaves scheduler and controllers out, as envtest does.
	APIServerOnly bool
	// Node adds a node that runs containers. It needs root.
	Node bool
	// SimulatedNodes adds so many real node agents with devices, whose containers run nothing. They need no privileges.
	SimulatedNodes int
	// Devices is an inventory of simulated devices and their faults (YAML, docs/lab.md), which all nodes have.
	Devices string
	// Template is a prepared cluster: this one begins as a copy of it.
	Template *Template
	// Flags are further flags of davit up.
	Flags []string
	// StartTimeout is how long the cluster may take to start; a minute unless told otherwise.
	StartTimeout time.Duration
	// StopTimeout is how long it may take to stop before it is killed; half a minute unless told otherwise.
	StopTimeout time.Duration
	// Output is given what davit writes, besides the log.
	Output io.Writer
	// test stands in the name of the log.
	test string
}

// program is the file to start.
func (o *Options) program() (string, error) {
	if o.Binary != "" {
		return o.Binary, nil
	}
	if named := os.Getenv("DAVIT_BINARY"); named != "" {
		return named, nil
	}
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), "davit")
		if about, err := os.Stat(beside); err == nil && about.Mode().IsRegular() {
			return beside, nil
		}
	}
	found, err := exec.LookPath("davit")
	if err != nil {
		return "", ErrNoBinary
	}
	return filepath.Abs(found)
}

// command is the command line, and the inventory's file, which has to be there as long as the cluster starts.
func (o *Options) command(place []string) (line []string, inventory string, err error) {
	line = append([]string{"up", "--exit-with-parent"}, place...)
	if !o.Node {
		line = append(line, "--no-node")
	}
	if o.APIServerOnly {
		line = append(line, "--no-scheduler", "--no-controllers")
	}
	if o.SimulatedNodes > 0 {
		line = append(line, "--sim-nodes", strconv.Itoa(o.SimulatedNodes))
	}
	if o.Devices != "" {
		inventory, err = written("davittest-*.yaml", o.Devices)
		if err != nil {
			return nil, "", fmt.Errorf("cannot write the inventory of devices: %w", err)
		}
		line = append(line, "--devices", inventory)
	}
	return append(line, o.Flags...), inventory, nil
}

// written is a new temporary file with this text.
func written(pattern, text string) (string, error) {
	file, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

func or(given, otherwise time.Duration) time.Duration {
	if given > 0 {
		return given
	}
	return otherwise
}
