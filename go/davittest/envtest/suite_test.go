package envtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"davit.dev/davittest"
	// What a suite that kubebuilder has made exchanges: sigs.k8s.io/controller-runtime/pkg/envtest
	"davit.dev/davittest/envtest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

var (
	kind = schema.GroupVersionKind{Group: "suite.davit.dev", Version: "v1", Kind: "Gauge"}

	testEnv   *envtest.Environment
	cfg       *rest.Config
	k8sClient client.Client
)

// TestMain is what kubebuilder's suite_test.go does, without Ginkgo.
func TestMain(m *testing.M) {
	logf.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	os.Exit(suite(m))
}

func suite(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	testEnv = &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("testdata", "crds")},
		ErrorIfCRDPathMissing: true,
		BinaryAssetsDirectory: filepath.Join("..", "bin", "k8s"),
	}
	defer func() {
		cancel()
		if err := testEnv.Stop(); err != nil {
			panic(err)
		}
	}()
	var err error
	if cfg, err = testEnv.Start(); err != nil {
		panic(err)
	}
	if k8sClient, err = client.New(cfg, client.Options{}); err != nil {
		panic(err)
	}
	if err := manage(ctx); err != nil {
		panic(err)
	}
	return m.Run()
}

// manage has a manager say in the status what the spec says.
func manage(ctx context.Context) error {
	manager, err := ctrl.NewManager(cfg, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).For(gauge("")).Complete(reconciler{manager.GetClient()})
	if err != nil {
		return err
	}
	go func() {
		if err := manager.Start(ctx); err != nil {
			panic(err)
		}
	}()
	return nil
}

type reconciler struct{ client.Client }

func (r reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	found := gauge("")
	if err := r.Get(ctx, request.NamespacedName, found); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	level, _, _ := unstructured.NestedInt64(found.Object, "spec", "level")
	if err := unstructured.SetNestedField(found.Object, level, "status", "seen"); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.Status().Update(ctx, found)
}

func gauge(name string) *unstructured.Unstructured {
	made := &unstructured.Unstructured{}
	made.SetGroupVersionKind(kind)
	made.SetNamespace("default")
	made.SetName(name)
	return made
}

// eventually waits until it holds, for half a minute at most.
func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func started(t *testing.T, environment *envtest.Environment) *envtest.Environment {
	t.Helper()
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := environment.Start(); err != nil {
		t.Fatal(err)
	}
	return environment
}

func clientOf(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	made, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestAReconcilerSeesWhatTheSuiteDefines(t *testing.T) {
	wrong := gauge("wrong")
	wrong.Object["spec"] = map[string]any{"level": int64(-1)}
	if err := k8sClient.Create(t.Context(), wrong); !apierrors.IsInvalid(err) {
		t.Errorf("the definition does not judge: %v", err)
	}
	made := gauge("one")
	made.Object["spec"] = map[string]any{"level": int64(7)}
	if err := k8sClient.Create(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a status", func() error {
		if err := k8sClient.Get(t.Context(), client.ObjectKeyFromObject(made), made); err != nil {
			return err
		}
		if seen, _, _ := unstructured.NestedInt64(made.Object, "status", "seen"); seen != 7 {
			return fmt.Errorf("seen %d", seen)
		}
		return nil
	})
	accounts := &corev1.ServiceAccountList{}
	if err := k8sClient.List(t.Context(), accounts); err != nil || len(accounts.Items) > 0 {
		t.Errorf("a controller made %d accounts: %v", len(accounts.Items), err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if err := k8sClient.Create(t.Context(), pod); err != nil {
		t.Errorf("pods wait for accounts: %v", err)
	}
}

func TestUsersHaveKubeconfigs(t *testing.T) {
	user, err := testEnv.AddUser(envtest.User{Name: "jane", Groups: []string{"system:masters"}}, &rest.Config{QPS: 7})
	if err != nil {
		t.Fatal(err)
	}
	if user.Config().QPS != 7 {
		t.Error("the base's settings are lost")
	}
	text, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range [][]byte{text, testEnv.KubeConfig} {
		config, err := clientcmd.RESTConfigFromKubeConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := clientOf(t, config).List(t.Context(), &corev1.SecretList{}); err != nil {
			t.Error(err)
		}
	}
}

func TestFlagsOfTheAPIServerAreDavits(t *testing.T) {
	t.Parallel()
	environment := &envtest.Environment{}
	environment.ControlPlane.GetAPIServer().Configure().
		Set("service-cluster-ip-range", "10.77.0.0/24").
		Append("disable-admission-plugins", "LimitRanger")
	started(t, environment)
	service := &corev1.Service{}
	key := client.ObjectKey{Namespace: "default", Name: "kubernetes"}
	if err := clientOf(t, environment.Config).Get(t.Context(), key, service); err != nil {
		t.Fatal(err)
	}
	if service.Spec.ClusterIP != "10.77.0.1" {
		t.Error(service.Spec.ClusterIP)
	}
	unknown := &envtest.Environment{}
	unknown.ControlPlane.GetAPIServer().Configure().Set("no-such-flag", "1")
	if _, err := unknown.Start(); err == nil || !strings.Contains(err.Error(), "--no-such-flag") {
		t.Errorf("a flag that is not there: %v", err)
	}
	if err := unknown.Stop(); err != nil {
		t.Error(err)
	}
}

func TestMoreThanTheAPIServerIsThereIfAskedFor(t *testing.T) {
	t.Parallel()
	environment := started(t, &envtest.Environment{Davit: &davittest.Options{SimulatedNodes: 1}})
	made := clientOf(t, environment.Config)
	eventually(t, "an account and a node", func() error {
		key := client.ObjectKey{Namespace: "default", Name: "default"}
		if err := made.Get(t.Context(), key, &corev1.ServiceAccount{}); err != nil {
			return err
		}
		return made.Get(t.Context(), client.ObjectKey{Name: "sim-0"}, &corev1.Node{})
	})
}

func TestAnExistingClusterIsUsedAndCleanedUp(t *testing.T) {
	t.Parallel()
	cluster, existing := davittest.Start(t), true
	environment := &envtest.Environment{
		UseExistingCluster: &existing,
		Config:             cluster.Config(),
		CRDInstallOptions: envtest.CRDInstallOptions{
			Paths: []string{filepath.Join("testdata", "crds")}, CleanUpAfterUse: true,
		},
	}
	if _, err := environment.Start(); err != nil {
		t.Fatal(err)
	}
	made := clientOf(t, cluster.Config())
	if err := made.Create(t.Context(), gauge("here")); err != nil {
		t.Error(err)
	}
	if _, err := environment.AddUser(envtest.User{Name: "jane"}, nil); err != envtest.ErrNotStarted {
		t.Errorf("users of an existing cluster: %v", err)
	}
	if err := environment.Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no definition", func() error {
		if err := made.Create(t.Context(), gauge("gone")); err == nil || apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("it is served: %v", err)
		}
		return nil
	})
	if err := made.List(t.Context(), &corev1.NamespaceList{}); err != nil {
		t.Errorf("the existing cluster was stopped: %v", err)
	}
}
