package davittest_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"davit.dev/davittest"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// child is set where the suite runs itself again, to be killed or to fail.
const child = "DAVITTEST_CHILD"

func clients(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	made, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func named(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// eventually waits until it holds, for a minute at most.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// directory is all of an ephemeral cluster.
func directory(cluster *davittest.Cluster) string {
	return filepath.Dir(filepath.Dir(cluster.Kubeconfig()))
}

func TestManyAtOnceKnowNothingOfEachOtherAndLeaveNothing(t *testing.T) {
	var left []string
	t.Run("all", func(t *testing.T) {
		for number := range 4 {
			name := fmt.Sprint("of-", number)
			cluster := davittest.Start(t)
			left = append(left, directory(cluster))
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				maps := clients(t, cluster.Config()).CoreV1().ConfigMaps("default")
				if _, err := maps.Create(t.Context(), named(name), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				listed, err := maps.List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, item := range listed.Items {
					if strings.HasPrefix(item.Name, "of-") && item.Name != name {
						t.Errorf("%s sees %s", name, item.Name)
					}
				}
			})
		}
	})
	for _, path := range left {
		if exists(path) {
			t.Errorf("%s is left", path)
		}
	}
}

func TestSimulatedNodesHaveDevices(t *testing.T) {
	t.Parallel()
	cluster := davittest.StartWith(t, davittest.Options{
		SimulatedNodes: 2,
		Devices:        "resources:\n- name: example.com/gpu\n  count: 3\n",
	})
	nodes := clients(t, cluster.Config()).CoreV1().Nodes()
	eventually(t, "two nodes with three devices each", func() bool {
		listed, err := nodes.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		without := func(node corev1.Node) bool {
			devices := node.Status.Allocatable["example.com/gpu"]
			return devices.Value() != 3
		}
		return len(listed.Items) == 2 && !slices.ContainsFunc(listed.Items, without)
	})
}

func TestCopiesBeginWhereTheTemplateEnded(t *testing.T) {
	t.Parallel()
	template, err := davittest.Prepare(t.Context(), davittest.Options{},
		func(ctx context.Context, cluster *davittest.Cluster) error {
			maps := clients(t, cluster.Config()).CoreV1().ConfigMaps("default")
			_, err := maps.Create(ctx, named("prepared"), metav1.CreateOptions{})
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := template.Remove(); err != nil {
			t.Error(err)
		}
	}()
	one := davittest.StartWith(t, davittest.Options{Template: template})
	other := davittest.StartWith(t, davittest.Options{Template: template})
	for _, cluster := range []*davittest.Cluster{one, other} {
		maps := clients(t, cluster.Config()).CoreV1().ConfigMaps("default")
		if _, err := maps.Get(t.Context(), "prepared", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	later := clients(t, one.Config()).CoreV1().ConfigMaps("default")
	if _, err := later.Create(t.Context(), named("later"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = clients(t, other.Config()).CoreV1().ConfigMaps("default").Get(t.Context(), "later", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a copy sees what another has: %v", err)
	}
}

func TestUsersAreWhoTheyAreAddedAs(t *testing.T) {
	t.Parallel()
	cluster := davittest.Start(t)
	config, err := cluster.AddUser("jane", "readers", "writers")
	if err != nil {
		t.Fatal(err)
	}
	jane := clients(t, config)
	self, err := jane.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if user := self.Status.UserInfo; user.Username != "jane" || !slices.Contains(user.Groups, "writers") {
		t.Errorf("is %v", user)
	}
	if _, err := jane.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("reads secrets: %v", err)
	}
}

func TestWhatDoesNotStartSaysWhy(t *testing.T) {
	t.Parallel()
	for name, wanted := range map[string]struct {
		options davittest.Options
		says    string
	}{
		"a flag":     {davittest.Options{Flags: []string{"--no-such-flag"}}, "--no-such-flag"},
		"a program":  {davittest.Options{Binary: "/nonexistent/davit"}, "cannot start /nonexistent/davit"},
		"a template": {davittest.Options{Flags: []string{"--template", "/nonexistent"}}, "there is no cluster"},
		"too late":   {davittest.Options{StartTimeout: time.Nanosecond}, "did not become ready"},
	} {
		cluster, err := davittest.Launch(t.Context(), wanted.options)
		if err == nil {
			t.Errorf("%s: it starts: %v", name, cluster.Stop())
		} else if !strings.Contains(err.Error(), wanted.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := davittest.Prepare(t.Context(), davittest.Options{Node: true}, nil)
	if err == nil || !strings.Contains(err.Error(), "containers cannot be copied") {
		t.Error(err)
	}
}

// again runs one test of this suite in a process of its own.
func again(t *testing.T, test string, variables ...string) *exec.Cmd {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(own, "-test.run", "^"+test+"$", "-test.v")
	command.Env = append(append(os.Environ(), child+"="+test), variables...)
	return command
}

func TestFails(t *testing.T) {
	if os.Getenv(child) != t.Name() {
		t.Skip("run by TestTheLogOfAFailedTestIsKept")
	}
	davittest.StartWith(t, davittest.Options{Flags: []string{"-v"}})
	t.Error("on purpose")
}

func TestTheLogOfAFailedTestIsKept(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	output, err := again(t, "TestFails", "DAVIT_TEST_LOGS="+logs).CombinedOutput()
	kept, globbed := filepath.Glob(filepath.Join(logs, "davittest-TestFails-*.log"))
	if err == nil || globbed != nil || len(kept) != 1 || !strings.Contains(string(output), kept[0]) {
		t.Fatalf("%v: %v\n%s", err, kept, output)
	}
	if about, err := os.Stat(kept[0]); err != nil || about.Size() == 0 {
		t.Errorf("an empty log: %v", err)
	}
}

func TestWaits(t *testing.T) {
	if os.Getenv(child) != t.Name() {
		t.Skip("run by TestNothingIsLeftOfATestThatIsKilled")
	}
	cluster := davittest.Start(t)
	if err := os.WriteFile(os.Getenv("DAVITTEST_READY"), []byte(strconv.Itoa(cluster.ProcessID())), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
}

func TestNothingIsLeftOfATestThatIsKilled(t *testing.T) {
	t.Parallel()
	ready, temporary := filepath.Join(t.TempDir(), "ready"), t.TempDir()
	command := again(t, "TestWaits", "DAVITTEST_READY="+ready, "TMPDIR="+temporary, "DAVIT_TEST_LOGS=")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	process := 0
	eventually(t, "a cluster in another process", func() bool {
		text, _ := os.ReadFile(ready)
		process, _ = strconv.Atoi(string(text))
		return process > 0
	})
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	eventually(t, "the end of the cluster", func() bool {
		return errors.Is(syscall.Kill(process, 0), syscall.ESRCH)
	})
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// BenchmarkStartAndStop tells the medians: go test -run - -bench Start -benchtime 100x.
func BenchmarkStartAndStop(b *testing.B) {
	var starts, stops []time.Duration
	for b.Loop() {
		begun := time.Now()
		cluster, err := davittest.Launch(b.Context(), davittest.Options{})
		if err != nil {
			b.Fatal(err)
		}
		ready := time.Now()
		if err := cluster.Stop(); err != nil {
			b.Fatal(err)
		}
		starts, stops = append(starts, ready.Sub(begun)), append(stops, time.Since(ready))
	}
	median := func(times []time.Duration) float64 {
		slices.Sort(times)
		return float64(times[len(times)/2]) / float64(time.Millisecond)
	}
	b.ReportMetric(median(starts), "ms/start")
	b.ReportMetric(median(stops), "ms/stop")
}
