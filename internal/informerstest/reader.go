// Package informerstest finds objects of a test's fake API server as the informers do.
package informerstest

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/informers"
)

// indexed has a fake API server keep fields.
type indexed struct{ *fake.ClientBuilder }

func (i indexed) IndexField(_ context.Context, kind client.Object, field string, of client.IndexerFunc) error {
	i.WithIndex(kind, field, of)
	return nil
}

// Index makes the fake API server keep the fields that the informers find objects by.
func Index(builder *fake.ClientBuilder) *fake.ClientBuilder {
	_ = informers.Index(context.Background(), indexed{builder})
	return builder
}

// Reader finds what is there at the moment.
func Reader(api client.Reader) informers.Reader { return informers.NewReader(Informers{api}) }

// Informers read objects as the plugin's informers keep them.
type Informers struct{ client.Reader }

// Get reads an object.
func (i Informers) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	if err := i.Reader.Get(ctx, key, into, o...); err != nil {
		return err // it stands for the informers
	}
	return keep(into)
}

// List reads objects.
func (i Informers) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	if err := i.Reader.List(ctx, into, options...); err != nil {
		return err // it stands for the informers
	}
	return meta.EachListItem(into, func(o runtime.Object) error { return keep(o.(client.Object)) })
}

// keep reduces the object to what the informers keep of it.
func keep(object client.Object) error {
	for watched, options := range informers.ByObject("") {
		if reflect.TypeOf(watched) != reflect.TypeOf(object) || options.Transform == nil {
			continue
		}
		kept, err := options.Transform(object)
		if err != nil {
			return fmt.Errorf("keep a part of %T: %w", object, err)
		}
		reflect.ValueOf(object).Elem().Set(reflect.ValueOf(kept).Elem())
	}
	return nil
}
