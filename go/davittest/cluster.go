package davittest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// lineLimit is more bytes than the line that says that a cluster is ready has.
const lineLimit = 64 << 10

// Cluster is a cluster that runs until it is stopped, or until this program ends, however it does.
type Cluster struct {
	process     *exec.Cmd
	ended       chan struct{} // closed when the process has ended
	end         error         // how; to be read after that
	said        *os.File      // read by nobody, and open as long as davit may write
	stop        sync.Once
	stopped     error // what Stop answers
	stopTimeout time.Duration
	kubeconfig  string
	url         string
	config      *rest.Config
	log         *log
	failed      func() bool // whether the log is to be kept
	kept        string      // where it is, after the end
	tail        string      // its last lines, after the end
}

// Launch starts a cluster and waits until it is ready. The context is that of the start: the cluster outlives it. Tests
// call Start.
func Launch(ctx context.Context, options Options) (*Cluster, error) {
	place := []string{"--ephemeral"}
	if options.Template != nil {
		place = append(place, "--template", options.Template.dataDir())
	}
	return launch(ctx, options, place)
}

func launch(ctx context.Context, options Options, place []string) (*Cluster, error) {
	limit := or(options.StartTimeout, startLimit)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	program, err := options.program()
	if err != nil {
		return nil, err
	}
	line, inventory, err := options.command(place)
	if err != nil {
		return nil, err
	}
	if inventory != "" {
		defer os.Remove(inventory)
	}
	log, err := newLog(options.test)
	if err != nil {
		return nil, fmt.Errorf("cannot make the cluster's log: %w", err)
	}
	c := &Cluster{
		log: log, ended: make(chan struct{}), stopTimeout: or(options.StopTimeout, stopLimit),
		failed: func() bool { return false },
	}
	ready, err := c.run(program, line, options.Output)
	if err != nil {
		log.drop()
		return nil, fmt.Errorf("cannot start %s: %w", program, err)
	}
	select {
	case text := <-ready:
		err = c.use(text)
	case <-ctx.Done():
		err = fmt.Errorf("davit did not become ready: %w", context.Cause(ctx))
	}
	if err == nil {
		return c, nil
	}
	// First, so that the log is whole. That it ends with an error is why we are here.
	_ = c.terminate()
	err = fmt.Errorf("%w; its log:\n%s", err, log.tail())
	log.drop()
	return nil, err
}

// run starts the process; the first line that it writes comes through the channel.
func (c *Cluster) run(program string, line []string, output io.Writer) (<-chan string, error) {
	said, says, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer says.Close()
	c.said = said
	c.process = exec.Command(program, line...)
	c.process.Stdout = says
	c.process.Stderr = c.log.file
	if output != nil {
		c.process.Stderr = io.MultiWriter(c.log.file, output)
	}
	// The log's copying ends although a monitor of a container may hold the other end.
	c.process.WaitDelay = time.Second
	if err := c.process.Start(); err != nil {
		return nil, errors.Join(err, said.Close())
	}
	go func() {
		c.end = c.process.Wait()
		close(c.ended)
	}()
	ready := make(chan string, 1)
	go func() {
		// Whatever ends the reading before the line ends the start.
		text, _ := bufio.NewReader(io.LimitReader(said, lineLimit)).ReadString('\n')
		ready <- text
	}()
	return ready, nil
}

// use takes what the cluster says when it is ready.
func (c *Cluster) use(text string) error {
	var found bool
	c.kubeconfig, c.url, found = parse(text)
	if !found {
		return errors.New("davit did not become ready")
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return fmt.Errorf("the cluster's kubeconfig %s cannot be used: %w", c.kubeconfig, err)
	}
	// A test's cluster is for it alone.
	config.QPS, config.Burst = 1000, 2000
	c.config = config
	return nil
}

// parse reads "ready in 31 ms  kubeconfig=FILE  server=URL".
func parse(text string) (kubeconfig, url string, found bool) {
	_, rest, found := strings.Cut(strings.TrimRight(text, "\n"), "  kubeconfig=")
	at := strings.LastIndex(rest, "  server=")
	if !found || at < 0 {
		return "", "", false
	}
	return rest[:at], rest[at+len("  server="):], true
}

// Config is for clients that may do everything. It is the caller's own copy.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig is the file of the administrator's kubeconfig, for programs.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig }

// URL is where the API server is: https://127.0.0.1:PORT.
func (c *Cluster) URL() string { return c.url }

// ProcessID is the number of davit's process.
func (c *Cluster) ProcessID() int { return c.process.Process.Pid }

// Stop stops the cluster and waits until nothing of it is left. It may be called again.
func (c *Cluster) Stop() error {
	c.stop.Do(func() { c.stopped = c.finish() })
	return c.stopped
}

// finish ends the process, and the log unless it is wanted.
func (c *Cluster) finish() error {
	err := c.terminate()
	if err == nil && !c.failed() {
		c.log.drop()
		return nil
	}
	c.tail = c.log.tail()
	kept, keeping := c.log.keep()
	c.kept = kept
	if err != nil {
		err = fmt.Errorf("%w; its log, %s:\n%s", err, kept, c.tail)
	}
	return errors.Join(err, keeping)
}

func (c *Cluster) terminate() error {
	defer c.said.Close()
	// It may have ended by itself.
	_ = c.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(c.stopTimeout):
		_ = c.process.Process.Kill()
		<-c.ended
		return fmt.Errorf("davit did not stop within %s and was killed", c.stopTimeout)
	}
	if c.end != nil && !errors.Is(c.end, exec.ErrWaitDelay) {
		return fmt.Errorf("davit ended with %w", c.end)
	}
	return nil
}

// dataDir is where the cluster's files are.
func (c *Cluster) dataDir() string { return filepath.Dir(c.kubeconfig) }
