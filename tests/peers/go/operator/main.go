// Command operator is an operator built on controller-runtime: a custom resource in two versions with a conversion
// webhook, a defaulting and a validating webhook, a reconciler with owned objects, a finalizer and status conditions.
//
// It installs its own definition and webhook configurations, serves the webhooks on a loopback address with a
// certificate made at start, prints `ready`, and runs until it is told to end.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const finalizer = "operator.davit.dev/farewell"

func main() {
	port := flag.Int("webhook-port", 9443, "port of the webhooks on 127.0.0.1")
	dir := flag.String("dir", os.TempDir(), "where the serving certificate is written")
	flag.Parse() // controller-runtime adds --kubeconfig
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler(), *port, *dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, port int, dir string) error {
	kubeconfig := flag.Lookup("kubeconfig").Value.String()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	addTypes(scheme)
	ca, err := writeCertificate(dir)
	if err != nil {
		return err
	}
	base := fmt.Sprintf("https://127.0.0.1:%d", port)
	if err := installDefinition(ctx, config, base, ca); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                  scheme,
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		LeaderElection:          true,
		LeaderElectionID:        "fleet-operator",
		LeaderElectionNamespace: "default",
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: "127.0.0.1", Port: port, CertDir: dir,
			CertName: filepath.Base(certFile), KeyName: filepath.Base(keyFile),
		}),
	})
	if err != nil {
		return err
	}
	if err := ctrl.NewWebhookManagedBy(manager, &Fleet{}).
		WithDefaulter(defaulter{}).WithValidator(validator{}).Complete(); err != nil {
		return err
	}
	reconciler := &reconciler{manager.GetClient(), manager.GetEventRecorderFor("fleet")}
	if err := ctrl.NewControllerManagedBy(manager).
		For(&Fleet{}).Owns(&corev1.ConfigMap{}).Complete(reconciler); err != nil {
		return err
	}
	if err := manager.Add(announcer{config: manager, base: base, ca: ca}); err != nil {
		return err
	}
	return manager.Start(ctx)
}

type defaulter struct{}

func (defaulter) Default(_ context.Context, f *Fleet) error {
	if f.Spec.Color == "" {
		f.Spec.Color = "green"
	}
	if f.Spec.Replicas == nil {
		one := int32(1)
		f.Spec.Replicas = &one
	}
	return nil
}

type validator struct{}

func (validator) ValidateCreate(_ context.Context, f *Fleet) (admission.Warnings, error) {
	if f.Spec.Color == "red" {
		return nil, fmt.Errorf("no fleet may be red")
	}
	if f.Spec.Color == "yellow" {
		return admission.Warnings{"yellow fades"}, nil
	}
	return nil, nil
}

func (v validator) ValidateUpdate(ctx context.Context, before, after *Fleet) (admission.Warnings, error) {
	if before.Spec.Color != after.Spec.Color && before.Status.Replicas > 0 && after.Spec.Color == "black" {
		return nil, fmt.Errorf("a fleet at sea is not painted black")
	}
	return v.ValidateCreate(ctx, after)
}

func (validator) ValidateDelete(context.Context, *Fleet) (admission.Warnings, error) { return nil, nil }

type reconciler struct {
	client.Client
	events record.EventRecorder
}

// Reconcile makes the config maps there be as many as are wanted.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var fleet Fleet
	if err := r.Get(ctx, request.NamespacedName, &fleet); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !fleet.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.farewell(ctx, &fleet)
	}
	if controllerutil.AddFinalizer(&fleet, finalizer) {
		return ctrl.Result{}, r.Update(ctx, &fleet)
	}
	for i := range *fleet.Spec.Replicas {
		if err := r.member(ctx, &fleet, fmt.Sprintf("%s-%d", fleet.Name, i)); err != nil {
			return ctrl.Result{}, err
		}
	}
	var members corev1.ConfigMapList
	if err := r.List(ctx, &members, client.InNamespace(fleet.Namespace), client.MatchingLabels{"fleet": fleet.Name}); err != nil {
		return ctrl.Result{}, err
	}
	kept := int32(0)
	for i := range members.Items {
		m := &members.Items[i]
		var number int32
		if _, err := fmt.Sscan(strings.TrimPrefix(m.Name, fleet.Name+"-"), &number); err == nil && number < *fleet.Spec.Replicas {
			kept++
		} else if err := r.Delete(ctx, m); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, r.report(ctx, &fleet, kept)
}

func (r *reconciler) member(ctx context.Context, fleet *Fleet, name string) error {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: fleet.Namespace}}
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, m, func() error {
		m.Labels = map[string]string{"fleet": fleet.Name}
		m.Data = map[string]string{"color": fleet.Spec.Color}
		return controllerutil.SetControllerReference(fleet, m, r.Scheme())
	})
	if done == controllerutil.OperationResultCreated {
		r.events.Eventf(fleet, corev1.EventTypeNormal, "Launched", "launched %s", name)
	}
	return err
}

func (r *reconciler) report(ctx context.Context, fleet *Fleet, there int32) error {
	before := fleet.deepCopy()
	fleet.Status.Replicas = there
	fleet.Status.Selector = "fleet=" + fleet.Name
	status := metav1.ConditionFalse
	if there == *fleet.Spec.Replicas {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&fleet.Status.Conditions, metav1.Condition{
		Type: "Ready", Status: status, Reason: "Counted", ObservedGeneration: fleet.Generation,
		Message: fmt.Sprintf("%d of %d", there, *fleet.Spec.Replicas),
	})
	return r.Status().Patch(ctx, fleet, client.MergeFrom(before))
}

func (r *reconciler) farewell(ctx context.Context, fleet *Fleet) error {
	if !controllerutil.RemoveFinalizer(fleet, finalizer) {
		return nil
	}
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fleet.Name + "-farewell", Namespace: fleet.Namespace}}
	if err := r.Create(ctx, note); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return r.Update(ctx, fleet)
}
